"""What fits on a card: the numbers, the bar, the controls, the printout."""

import re
import sys
from inspect import signature
from types import ModuleType

import nbformat
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from d2l_ext import explorer, runs
from d2l_ext.catalogue import CARDS, MODELS
from d2l_ext.explorer import cache_report, explore_cache

START = dict(model='Llama-3-8B', context=8192, batch=1, kv_heads=None,
             dtype='bf16', latent=None, window=None, sinks=0,
             card='RTX 4090')
LINES = '''\
Llama-3-8B, bf16, RTX 4090: weights 15.0 GiB, 128.0 KiB per token
context 8192, batch 1: cache 1.0 GiB, total 16.0 GiB of 24.0 GiB: fits
sequences of 8192 tokens beside the weights: 9
'''


@pytest.fixture(autouse=True)
def no_kernel(monkeypatch):
    """Another test file may have imported it."""
    monkeypatch.delitem(sys.modules, 'ipykernel', raising=False)


# --- The numbers -------------------------------------------------------------


def test_a_report_by_hand():
    """32 blocks of 8 heads of 128; keys and values; 2 bytes."""
    report = cache_report(context=1000, batch=3)
    assert report.weights == 2 * 8_030_261_248
    assert report.per_token == 2 * 32 * 8 * 128 * 2
    assert report.cache == 3 * 1000 * report.per_token
    assert report.total == report.weights + report.cache
    assert report.capacity == 24 * 2**30
    assert report.sequences == 74  # 9,709,281,280 over 131,072,000


@given(st.sampled_from([*MODELS]), st.sampled_from([*CARDS]),
       st.sampled_from([*explorer.DTYPES]), st.integers(1, 10**5),
       st.integers(0, 9))
def test_as_many_sequences_fit_as_it_says_and_no_more(model, card, dtype,
                                                      context, more):
    """A batch fits just when it is no larger than the number of sequences."""
    setting = dict(model=model, card=card, dtype=dtype, context=context)
    most = cache_report(**setting).sequences
    assert cache_report(**setting, batch=most + 1 + more).fits is False
    assert not most or cache_report(**setting, batch=most).fits is True


def test_both_functions_have_the_same_defaults():
    for function in (cache_report, explore_cache):
        assert {name: parameter.default for name, parameter in signature(
            function).parameters.items()} == START


def test_a_total_of_just_the_capacity_fits():
    report = cache_report()
    kwargs = {name: getattr(report, name)
              for name in report.__dataclass_fields__}
    for spare, fits in ((0, True), (-1, False)):
        kwargs['capacity'] = report.total + spare
        assert explorer.CacheReport(**kwargs).fits is fits


@pytest.mark.parametrize('dtype, size', [('fp32', 4), ('bf16', 2),
                                         ('fp8', 1)])
def test_the_type_is_that_of_weights_and_cache(dtype, size):
    report = cache_report('SmolLM2-135M', dtype=dtype)
    assert report.weights == 134_515_008 * size
    assert report.per_token == 2 * 30 * 3 * 64 * size


def test_settings_stand_in_for_the_models_own():
    """Elements per token and block, at a byte each."""
    def elements(model, **setting):
        report = cache_report(model, dtype='fp8', **setting)
        return report.per_token / MODELS[model].num_blks

    assert elements('Llama-3-8B') == 2 * 8 * 128
    assert elements('Llama-3-8B', kv_heads=32) == 2 * 32 * 128
    assert elements('Llama-3-8B', latent=256) == 256 + 64
    assert elements('DeepSeek-V2') == 512 + 64
    assert elements('DeepSeek-V2', latent=256) == 256 + 64
    assert elements('DeepSeek-V2', kv_heads=16) == 2 * 16 * 128


def test_a_models_rotary_part_stays_with_another_latent(monkeypatch):
    from dataclasses import replace
    monkeypatch.setitem(MODELS, 'DeepSeek-V2', replace(
        MODELS['DeepSeek-V2'], rotary_dim=32))
    assert cache_report('DeepSeek-V2', latent=256, dtype='fp8').per_token == (
        60 * (256 + 32))


def test_a_window_bounds_the_cache():
    own = cache_report('Mistral-7B', context=30_000)
    assert (own.kept, own.cache) == (4096, 512 * 2**20)
    assert cache_report('Mistral-7B', context=30_000, sinks=4).kept == 4100
    assert cache_report('Mistral-7B', context=30_000, window=40_000
                        ).kept == 30_000
    wide = cache_report(context=30_000, window=100, sinks=3)
    assert (wide.kept, wide.cache) == (103, 103 * 128 * 1024)


@pytest.mark.parametrize('setting, message', [
    (dict(model='GPT-9'), "model='GPT-9'.*'Llama-3-8B'"),
    (dict(card='T5'), "card='T5'.*'T4'"),
    (dict(dtype='int3'), "dtype='int3'.*'fp32', 'bf16', 'fp8'"),
    (dict(context=0), 'context=0'), (dict(context=7.5), 'context=7.5'),
    (dict(batch=-1), 'batch=-1'), (dict(batch=True), 'batch=True'),
    (dict(kv_heads=0), 'kv_heads=0: expected a whole'),
    (dict(kv_heads=True), 'kv_heads=True'),
    (dict(kv_heads=5), 'kv_heads=5: expected one of 1, 2, 4, 8, 16, 32'),
    (dict(latent=0), 'latent=0'), (dict(window=0), 'window=0'),
    (dict(sinks=4), 'sinks=4: without a window'),
    (dict(sinks=-1, window=7), 'sinks=-1'),
    (dict(kv_heads=4, latent=512), 'kv_heads=4 and latent=512'),
])
def test_what_cannot_be_is_refused_by_name(setting, message, capsys):
    for call in (cache_report, explore_cache):
        with pytest.raises(ValueError, match='^' + message):
            call(**setting)
    assert capsys.readouterr().out == ''


# --- In words and as a bar ---------------------------------------------------


def test_without_a_front_end_it_prints_lines(capsys):
    assert explore_cache() is None
    assert capsys.readouterr().out == LINES


def test_lines_say_what_was_set_and_what_is_evicted(capsys):
    explore_cache('GPT-2', 2048, 2, kv_heads=3, window=64, sinks=2,
                  dtype='fp32', card='T4')
    assert capsys.readouterr().out == '''\
GPT-2, kv_heads=3, window=64, sinks=2, fp32, T4: weights 474.7 MiB, 18.0 KiB
    per token
context 2048 (66 kept), batch 2: cache 2.3 MiB, total 477.0 MiB of 16.0 GiB:
    fits
sequences of 2048 tokens beside the weights: 13713
2048 tokens are more than the 1024 that the model is made for
'''
    explore_cache('Llama-2-70B', 4096, np.int64(3))
    assert capsys.readouterr().out == '''\
Llama-2-70B, bf16, RTX 4090: weights 128.5 GiB, 320.0 KiB per token
context 4096, batch 3: cache 3.8 GiB, total 132.2 GiB of 24.0 GiB: does not
    fit
sequences of 4096 tokens beside the weights: 0
'''


@pytest.mark.parametrize('setting', [{}, dict(batch=64)])
def test_the_bar_is_weights_then_cache_against_the_cards_line(setting):
    report = cache_report(**setting)
    figure = explorer.draw_report(report)
    [axes] = figure.axes
    weights, cache = axes.patches
    gib = 2**30
    assert weights.get_x() == 0
    assert weights.get_width() == pytest.approx(report.weights / gib)
    assert cache.get_x() == pytest.approx(report.weights / gib)
    assert cache.get_width() == pytest.approx(report.cache / gib)
    [line] = axes.lines
    assert line.get_xdata() == pytest.approx([report.capacity / gib] * 2)
    wide = max(report.total, report.capacity) / gib
    assert axes.get_xlim()[0] == 0 and wide < axes.get_xlim()[1] < 1.2 * wide
    assert axes.get_xlabel() == 'memory (GiB)'


def test_the_bar_reads_without_colour_and_says_its_numbers():
    figure = explorer.draw_report(cache_report())
    weights, cache = figure.axes[0].patches
    assert weights.get_hatch() and cache.get_hatch()
    assert weights.get_hatch() != cache.get_hatch()
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        'weights 15.0 GiB', 'cache 1.0 GiB', 'RTX 4090 24.0 GiB']


def test_the_figure_is_not_pyplots():
    """An open figure of pyplot would be shown once more by a notebook."""
    from matplotlib import pyplot as plt
    before = plt.get_fignums()
    assert explorer.as_html(**START).count('<svg') == 1
    assert plt.get_fignums() == before


# --- The controls ------------------------------------------------------------


@pytest.fixture
def box():
    """(controls by name, what is shown): no front end is needed."""
    def build(**setting):
        grid, shown = explorer.cache_controls(**START | setting).children
        return {control.description.split()[0]: control
                for control in grid.children}, shown
    return build


def test_the_controls_start_as_asked_and_show_text_and_bar(box):
    controls, shown = box()
    assert list(controls) == ['model', 'dtype', 'card', 'context', 'batch',
                              'kv_heads', 'latent', 'window', 'sinks']
    text = re.sub('<div.*', '', shown.value, flags=re.DOTALL)
    assert text == '<p>' + '<br>'.join(LINES.splitlines()) + '</p>'
    label = f'role="img" aria-label="{LINES.splitlines()[1]}"><svg'
    assert shown.value.count('<svg') == 1 == shown.value.count(label)


def test_every_control_takes_the_start(box):
    setting = dict(model='Mistral-7B', context=1000, batch=3, latent=512,
                   dtype='fp32', window=77, sinks=2, card='T4')
    controls, shown = box(**setting)
    assert {name: controls[name].value for name in setting} == setting
    assert cache_report(**setting).lines[0] in shown.value
    assert box(kv_heads=4)[0]['kv_heads'].value == 4


@pytest.mark.parametrize('name, value', [
    ('model', 'GPT-2'), ('dtype', 'fp8'), ('card', 'H200 141GB'),
    ('context', 2**17), ('batch', 16), ('kv_heads', 4), ('latent', 256),
    ('window', 1000), ('sinks', 3)])
def test_each_control_changes_what_is_shown(box, name, value):
    setting = dict(window=99) if name == 'sinks' else {}
    controls, shown = box(**setting)
    before = shown.value
    controls[name].value = value
    report = cache_report(**START | setting | {name: value})
    assert '<br>'.join(report.lines) in shown.value
    assert explorer.format_bytes(report.total) in shown.value
    assert shown.value != before and '<svg' in shown.value


def test_a_slider_doubles_and_keeps_the_readers_number(box):
    controls, _ = box(context=1000)
    options = list(controls['context'].options)
    assert options == sorted({2**k for k in range(21)} | {1000})


def test_what_cannot_be_is_said_and_left_again(box):
    """The message in place of text and bar, escaped; then all as before."""
    controls, shown = box()
    before = re.sub('<svg.*', '', shown.value, flags=re.DOTALL)
    controls['sinks'].value = 4
    assert shown.value == ('<p role="alert">sinks=4: without a window every '
                           'token stays, so give a window too</p>')
    controls['sinks'].value = 0
    assert shown.value.startswith(before)
    controls['window'].value = -1
    assert 'window=-1: expected' in shown.value and '<svg' not in shown.value
    controls['window'].value = 0
    controls['kv_heads'].value = 4
    controls['latent'].value = 9
    assert 'kv_heads=4 and latent=9' in shown.value
    assert '&lt;b&gt;' in explorer.as_html(**START | dict(model='<b>'))


def test_another_model_offers_its_own_heads(box):
    controls, shown = box(kv_heads=32)
    seen = []
    shown.observe(lambda change: seen.append(change['new']), 'value')
    controls['model'].value = 'SmolLM2-135M'
    assert dict(controls['kv_heads'].options) == {
        'own': None, '1': 1, '3': 3, '9': 9}
    assert controls['kv_heads'].value is None
    assert seen and not [text for text in seen if 'alert' in text]
    assert 'SmolLM2-135M, bf16' in seen[-1]


# --- With a front end --------------------------------------------------------


@pytest.fixture
def displayed(monkeypatch):
    """What a kernel would show."""
    import IPython.display
    shown, kernel = [], ModuleType('ipykernel')
    kernel.version_info = 7, 0, 0  # ipywidgets asks
    monkeypatch.setitem(sys.modules, 'ipykernel', kernel)
    monkeypatch.setattr(IPython.display, 'display', shown.append)
    return shown


def test_someone_who_watches_gets_the_controls_alone(displayed, monkeypatch,
                                                     capsys):
    from ipywidgets import VBox
    monkeypatch.setattr(runs, 'interactive', lambda: True)
    assert explore_cache('GPT-2', 1000) is None
    [box] = displayed
    assert isinstance(box, VBox) and 'context 1000' in box.children[1].value
    assert capsys.readouterr().out == ''


def test_headless_or_without_ipywidgets_lines_and_one_figure(
        displayed, monkeypatch, capsys):
    explore_cache()
    monkeypatch.setattr(runs, 'interactive', lambda: True)
    monkeypatch.setattr(explorer, 'find_spec', lambda name: None)
    explore_cache()
    assert capsys.readouterr().out == 2 * LINES
    assert [type(figure).__name__ for figure in displayed] == ['SVG', 'SVG']


def test_a_terminal_gets_lines_alone(monkeypatch, capsys):
    monkeypatch.setattr(runs, 'interactive', lambda: True)
    explore_cache()
    assert capsys.readouterr().out == LINES


@pytest.mark.notebooks
@pytest.mark.parametrize('headless', ['1', ''])
def test_a_notebook_shows_one_figure_or_the_controls(headless, monkeypatch):
    """In a real kernel, with a figure of pyplot made before."""
    from nbclient import NotebookClient
    for name in ('PYTEST_CURRENT_TEST', 'MPLBACKEND'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv('D2L_HEADLESS', headless)
    # who watches may be asked for input; nbclient says that it may not
    cell = nbformat.v4.new_code_cell(
        'get_ipython().kernel._allow_stdin = True\n'
        'from d2l_ext.explorer import explore_cache\n'
        'from d2l_ext.plotting import plot\nexplore_cache()')
    NotebookClient(nbformat.v4.new_notebook(cells=[cell])).execute()
    if headless:
        text, figure = cell.outputs
        assert text['text'] == LINES and 'image/svg+xml' in figure['data']
    else:
        [view] = cell.outputs
        assert 'application/vnd.jupyter.widget-view+json' in view['data']


def test_both_backends_offer_the_explorer(backend):
    assert backend.d2l.explore_cache is explore_cache
    assert backend.d2l.format_bytes is explorer.format_bytes


@pytest.mark.parametrize('n, text', [
    (0, '0 B'), (512, '512 B'), (1023, '1023 B'), (1024, '1.0 KiB'),
    (72 * 2**10, '72.0 KiB'), (np.int64(288 * 2**20), '288.0 MiB'),
    (1.2 * 2**30, '1.2 GiB'), (2**20 - 1, '1.0 MiB'), (2**40, '1.0 TiB'),
    (3 * 2**50, '3.0 PiB'), (2**62, '4096.0 PiB')])
def test_bytes_are_written_in_binary_units(n, text):
    """Never as 1024.0 of a unit that has a larger one."""
    assert explorer.format_bytes(n) == text


@pytest.mark.parametrize('n', [-1, True, '7', None, float('nan'),
                               float('inf'), 10**400])
def test_what_is_no_number_of_bytes_is_refused(n):
    with pytest.raises(ValueError) as error:
        explorer.format_bytes(n)
    assert str(error.value).startswith(f'n={n!r}: expected')


def test_seven_lines_differ_without_colour():
    """In stroke and marker, and no marker is used twice."""
    from matplotlib import pyplot as plt

    from d2l_ext import plotting
    try:
        plotting.plot([[1, 2]] * 7, legend=[*'abcdefg'])
        lines = plt.gca().get_lines()
        assert len({line.get_marker() for line in lines}) == 7
        assert [(line.get_linestyle(), line.get_marker())
                for line in lines[:4]] == [
            ('-', 'o'), ('--', 's'), ('-.', '^'), (':', 'D')]
        for line in lines:
            assert line.get_linestyle() in ('-', '--', '-.', ':')
    finally:
        plt.close('all')
