"""The benchmark: what it times is right, and what it makes of the times.

B batch, T tokens, H query heads, G key-value heads, hd head width
"""

import json
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from backends import BACKENDS

from d2l_ext.bench import cases, launch, measure, picture, report, worker
from d2l_ext.bench.__main__ import DEFAULTS, SMALL, main

B, T, H, G, HD = 2, 7, 6, 3, 4
SIZES = dict(vocab_size=31, num_hiddens=H * HD, num_heads=H, num_blks=2,
             max_len=32, base=500, epsilon=0.01)
STEPS = 5


@pytest.fixture(params=[None, G], ids=['fused', 'shared'])
def small(request, tmp_path):
    """(sizes, file, model): its weights tell every token and head apart."""
    sizes = dict(SIZES, num_kv_heads=request.param)
    model = BACKENDS['torch'].gpt(**sizes)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(4 * torch.randn_like(p) / p.shape[-1] ** 0.5)
    file = tmp_path / 'weights.safetensors'
    BACKENDS['torch'].d2l.save_weights(model, file)
    return sizes, file, model


PROMPTS = cases.prompts(31, B, T)


def continued(model):
    """The first prompt's greedy tokens, by the lesson's own generator."""
    return model.generate_cached(PROMPTS[0].tolist(), STEPS + 1,
                                 temperature=0)[T:]


def tokens_of(name, small, steps=STEPS):
    sizes, file, model = small
    backend, name = worker.backend_of(name)
    method = backend.METHODS[name](backend.load(sizes, file), PROMPTS, steps)
    seconds = method.run()
    assert len(seconds) == 2 and min(seconds) > 0, seconds
    once = method.ids
    method.run()  # from the prompts again, not on from where it was
    assert method.ids == once
    assert len(once) == method.steps + 1
    return once


@pytest.mark.parametrize('name', [
    m for m in cases.DEFAULT_METHODS if not m.startswith('jax')])
def test_each_method_continues_as_the_lesson(small, name):
    """Greedy, from the same weights; transformers is held to ours, too."""
    expected = continued(small[2])
    assert len(set(expected)) > 2, f'too dull to tell: {expected}'
    ids = tokens_of(name, small)
    assert ids == expected[:len(ids)]


@pytest.mark.slow
@pytest.mark.parametrize('name', [
    m for m in cases.DEFAULT_METHODS if m.startswith('jax')])
def test_each_method_of_jax_continues_as_torch(small, name):
    expected = continued(small[2])
    ids = tokens_of(name, small)
    assert ids == expected[:len(ids)]


def test_the_static_step_gives_the_logits_of_a_full_pass(small):
    """Prompt of 4, then one by one; the buffers are longer than filled."""
    from d2l_ext.bench import methods_torch
    model, X = small[2], torch.as_tensor(PROMPTS)
    full = BACKENDS['torch'].full(model, X)
    ks, vs = BACKENDS['torch'].d2l.fast_cache(model, B, T + 3)
    assert len(ks) == len(vs) == 2
    for x in (*ks, *vs):
        assert x.shape == (B, small[0]['num_kv_heads'] or H, T + 3, HD)
        x.fill_(torch.nan)  # an empty slot that is read shows
    with torch.inference_mode():
        for start, stop in ((0, 4), (4, 5), (5, 6), (6, 7)):
            logits = methods_torch.forward_static(
                model, ks, vs, X[:, start:stop], start).numpy()
            error = np.abs(logits - full[:, stop - 1]).max()
            assert error < 1e-5 * np.abs(full).max(), (stop, error)


def test_transformers_gives_the_same_logits(small):
    """To 1e-4 of their scale, for all prompts at once."""
    from d2l_ext.bench import peers
    sizes, file, model = small
    with torch.no_grad():
        theirs = peers.load(sizes, file)(torch.as_tensor(PROMPTS)).logits
    ours = BACKENDS['torch'].full(model, PROMPTS)
    error = np.abs(theirs.numpy() - ours).max()
    assert error < 1e-4 * np.abs(ours).max(), error


def test_transformers_uses_the_cache_that_is_named(small, monkeypatch):
    import transformers
    from transformers import cache_utils

    from d2l_ext.bench import peers
    made = []
    for kind in ('DynamicCache', 'StaticCache'):
        cls = getattr(cache_utils, kind)
        def note(self, *args, kind=kind, before=cls.__init__, **kwargs):
            made.append(kind)
            before(self, *args, **kwargs)
        monkeypatch.setattr(cls, '__init__', note)
    model = peers.load(*small[:2])
    assert isinstance(model, transformers.LlamaForCausalLM)
    for name, kind in (('dynamic', 'DynamicCache'),
                       ('static', 'StaticCache')):
        made.clear()
        peers.METHODS[name](model, PROMPTS, STEPS).run()
        assert kind in made and len(set(made)) == 1, (name, made)


# --- Measuring --------------------------------------------------------------


class Fake(measure.Method):
    """Takes the seconds of a list, a prefill and a step at a time."""

    def __init__(self, seconds):
        super().__init__(None, np.zeros((1, 4), int), 2)
        self.seconds = seconds

    def run(self):
        return self.seconds.pop(0)


def test_medians_are_of_the_runs_after_the_first():
    fake, left = Fake([(90, 90), (1, 30), (5, 10), (2, 20)]), []
    row = measure.measure(fake, 3, lambda: left.append(len(fake.seconds)))
    assert (row['prefill_s'], row['step_s'], row['repeats']) == (2, 20, 3)
    assert left == [3]  # `before` came after the warm-up


def test_enough_is_enough_but_once_is_measured():
    row = measure.measure(Fake([(9, 9), (1, 2), (3, 4)]), 2, enough=0)
    assert (row['prefill_s'], row['step_s'], row['repeats']) == (1, 2, 1)


@pytest.fixture
def clock(monkeypatch):
    """clock.sleep(s) takes no time, but those who look think it does."""
    clock = SimpleNamespace(now=100.0)
    clock.sleep = lambda s: setattr(clock, 'now', clock.now + s)
    from d2l_ext.bench import peers
    for module in (measure, peers):
        monkeypatch.setattr(module, 'time', SimpleNamespace(
            perf_counter=lambda: clock.now))
    return clock


def test_seconds_per_step_are_those_of_a_step(clock):
    class Sleeper(measure.Method):
        def read(self):
            clock.sleep(7)
            return np.array([[8]])

        def step(self, token, i):
            clock.sleep(1 + i)
            return token + i + 1

    sleeper = Sleeper(None, np.zeros((1, 4), int), 5)
    assert sleeper.run() == (7, (1 + 2 + 3 + 4 + 5) / 5)
    assert sleeper.ids == [8, 9, 11, 14, 18, 23]


def test_seconds_of_transformers_are_those_between_tokens(clock):
    """The prompt is handed over, too, and is no token of theirs."""
    from d2l_ext.bench import peers

    class Sleeper:
        device = 'cpu'

        def generate(self, X, max_new_tokens, streamer, **_):
            streamer.put(X)
            for i in range(max_new_tokens):
                clock.sleep(i or 7)
                streamer.put(X[:, :1])
            return torch.cat([X, X[:, :max_new_tokens]], dim=1)

    method = peers.Dynamic(Sleeper(), PROMPTS, 4)
    assert method.run() == (7, (1 + 2 + 3 + 4) / 4)
    assert method.ids == PROMPTS[0, :5].tolist()


@pytest.mark.skipif(not sys.platform.startswith('linux'),
                    reason='no other system lets a peak be forgotten')
def test_a_peak_can_be_forgotten():
    """In a process of its own: another test's garbage would hide ours."""
    done = subprocess.run([sys.executable, '-c', FORGETTING], text=True,
                          capture_output=True, env=launch.environment())
    assert done.returncode == 0, done.stderr
    large, pieces, after = map(int, done.stdout.split())
    assert large - after > 80e6, 'the peak stays'
    assert pieces - after > 60e6, 'what was freed is still held'


FORGETTING = """
import numpy as np
from d2l_ext import runs
from d2l_ext.bench.measure import forget_peak
np.ones(25_000_000)  # 200 MB, gone at once
large = runs.peak_bytes()
# 100 MB in pieces that the C library keeps for itself, below one that stays
pieces = [np.ones(10_000) for _ in range(1250)]
stays = np.ones(10_000)
del pieces
held = runs.resident_bytes()
forget_peak()
print(large, held, runs.peak_bytes())
"""


# --- What becomes of the times ----------------------------------------------


def row(method, step_s=0.1, prefill_s=2.0, batch=4, context=50, **more):
    return dict(model='tiny', method=method, batch=batch, context=context,
                prefill_s=prefill_s, step_s=step_s, repeats=3, steps=5,
                bandwidth=1e10, bytes=2e8, peak_bytes=3 * 2**20,
                device='CPU', ids=[1, 2, 3], seconds=7.0) | more


def test_rates_share_and_ratios():
    """On numbers that a reader can follow by head."""
    rows = report.derived([
        row('hf-static', step_s=0.25, prefill_s=1.0),
        row('torch-static', step_s=0.05),
        row('hf-dynamic', step_s=0.2, prefill_s=4.0),
        row('jax-static', context=60),   # no peer has this context
        dict(model='tiny', method='jax-naive', batch=4, context=50,
             why='left out')])
    assert [r['method'] for r in rows] == [
        'torch-static', 'jax-naive', 'hf-dynamic', 'hf-static', 'jax-static']
    ours, skipped, _, static, alone = rows
    assert ours['prefill_rate'] == 4 * 50 / 2.0
    assert ours['decode_rate'] == 4 / 0.05
    assert ours['share'] == pytest.approx(0.02 / 0.05)
    # decode: the dynamic one is better, prefill: the static one
    assert ours['decode_ratio'] == pytest.approx(0.2 / 0.05)
    assert ours['prefill_ratio'] == pytest.approx(1.0 / 2.0)
    assert static['prefill_ratio'] == 1
    assert alone['decode_ratio'] is alone['prefill_ratio'] is None
    assert 'decode_rate' not in skipped and skipped['why'] == 'left out'


def test_rows_are_in_the_order_of_the_question():
    """Contexts below each other, for one batch after the other."""
    given = [(8, 9), (4, 60), (8, 7), (4, 50)]
    rows = report.derived([row('jax-static', batch=b, context=c)
                           for b, c in given])
    assert [(r['batch'], r['context']) for r in rows] == sorted(given)


def test_a_peer_that_failed_is_no_peer():
    rows = report.derived([row('torch-static'), dict(
        model='tiny', method='hf-static', batch=4, context=50, why='no')])
    assert rows[0]['decode_ratio'] is None
    assert '-' in report.table(rows).splitlines()[1].split()


def test_bytes_of_a_step_are_all_weights_and_all_caches():
    """fp32: 4 bytes each; keys and values of G heads, not of H."""
    shared = dict(num_hiddens=24, num_heads=6, num_blks=5, num_kv_heads=3)
    assert cases.step_bytes(shared, 1000, batch=2, context=7) == (
        4 * (1000 + 2 * 5 * 3 * 4 * 7 * 2))
    assert cases.step_bytes(shared | dict(num_kv_heads=None), 1000, 2, 7) == (
        4 * (1000 + 2 * 5 * 6 * 4 * 7 * 2))


def test_parameters_are_counted_in_the_file(small):
    assert cases.count_parameters(small[1]) == sum(
        p.numel() for p in small[2].parameters())


def test_other_tokens_are_told():
    """A fast method that continues otherwise is no method."""
    rows = [row('torch-naive', ids=[1, 2]), row('torch-static'),
            row('hf-static', ids=[1, 2, 4]), row('jax-static', ids=[1, 9]),
            row('jax-static', ids=[5], context=60)]
    assert report.disagreements(rows) == [
        'tiny, batch 4, context 50: jax-static does not continue as '
        'torch-naive']


def test_the_table_has_a_line_for_each_row():
    rows = report.derived([
        row('torch-static'), row('hf-static', step_s=0.2, prefill_s=1.0),
        dict(model='tiny', method='hf-dynamic', batch=4, context=50,
             why='ran out of patience'), row('torch-static', context=60)])
    lines = report.table(rows).splitlines()
    assert lines[1].split() == [
        'tiny', '4', '50', 'torch-static', '100', '40.0', '20.0%', '10.0',
        '3.0', 'MiB', '0.500', '2.00', '3']
    assert lines[2].endswith('hf-dynamic    ran out of patience')
    assert lines[4] == '' and lines[5].split()[2] == '60'
    assert len({len(lines[i]) for i in (0, 1, 3, 5)}) == 1
    assert lines[0].endswith('runs')


@pytest.mark.parametrize('x, shown', [
    (1234.5, '1234'), (99.96, '100'), (1, '1.00'), (0.00123456, '0.00123'),
    (None, '-')])
def test_three_digits_count(x, shown):
    assert report.number(x) == shown


def test_head_and_table_and_data_say_the_same(tmp_path):
    head, rows = report.header(), [row('torch-static', device='a card')]
    shown = report.write(tmp_path, head, rows)
    assert shown == (tmp_path / 'table.txt').read_text()
    for part in (f'torch {torch.__version__}', 'on a card', '10.0 to 10.0',
                 head['cpu'], report.NOTES, cases.METHODS['torch-static']):
        assert part in shown
    assert cases.METHODS['jax-fast'] not in shown  # was not measured
    kept = json.loads((tmp_path / 'table.json').read_text())
    assert kept['rows'] == report.derived(rows) and kept['header'] == head


def test_lines_of_the_plot_are_shares_over_contexts(tmp_path):
    rows = report.derived([
        row('jax-static', context=60, step_s=0.05), row('jax-static'),
        row('jax-static', batch=8, step_s=0.3), row('hf-static', step_s=0.4),
        dict(model='tiny', method='jax-naive', batch=4, context=50, why='-')])
    [ours, theirs] = picture.lines(rows, 'tiny', 4).items()
    assert ours == ('jax-static', ((50, 60), pytest.approx((0.2, 0.4))))
    assert theirs == ('hf-static', ((50,), (pytest.approx(0.05),)))
    picture.draw(rows, tmp_path / 'plot.svg')
    drawn = (tmp_path / 'plot.svg').read_text()
    assert drawn.rstrip().endswith('</svg>') and 'batch 4' in drawn
    picture.draw([r for r in rows if 'why' in r], tmp_path / 'none.svg')
    assert not (tmp_path / 'none.svg').exists()


def test_each_method_has_its_own_stroke_and_marker():
    styles = [picture.style(method) for method in cases.METHODS]
    assert len(set(styles)) == len(styles)


# --- Workers ----------------------------------------------------------------

SPEC = dict(contexts=[16, 32, 64])


def work(monkeypatch, program, limit=60):
    monkeypatch.setattr(launch, 'command', lambda spec: [
        sys.executable, '-c', program])
    return list(launch.work(SPEC, limit))


def test_rows_come_from_lines_that_say_so(monkeypatch):
    rows = work(monkeypatch, "print('a warning')\nfor c in (16, 32, 64):\n"
                "    print('row {\"context\": %d}' % c)")
    assert rows == [dict(context=c) for c in (16, 32, 64)]


@pytest.mark.parametrize('end, why', [
    ("raise ValueError('no such thing')", 'ValueError: no such thing'),
    ('import os; os.kill(os.getpid(), 9)', 'stopped by signal 9, out of '
                                           'memory?'),
    ('import sys; sys.exit(3)', 'ended with status 3')])
def test_a_worker_that_fails_leaves_rows_that_say_why(monkeypatch, end, why):
    rows = work(monkeypatch, 'print(\'row {"context": 16}\', flush=True)\n'
                + end)
    assert rows == [dict(context=16), dict(context=32, why=why),
                    dict(context=64, why='not tried after that')]


def test_a_worker_that_takes_too_long_is_stopped(monkeypatch):
    monkeypatch.setattr(launch, 'STARTING', 5)
    start = time.monotonic()
    rows = work(monkeypatch, 'import time\nprint(\'row {"context": 16}\', '
                'flush=True)\ntime.sleep(30)', limit=0.2)
    assert [r.get('why') for r in rows] == [None, 'stopped after 0.2 s',
                                            'not tried after that']
    assert time.monotonic() - start < 20


def test_an_interrupted_worker_does_not_run_on(monkeypatch):
    started = []
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, 'Popen', lambda *args, **kwargs: (
        started.append(popen(*args, **kwargs)) or started[0]))
    monkeypatch.setattr(launch, 'command', lambda spec: [
        sys.executable, '-c', 'import time\nprint(\'row {"context": 16}\', '
        'flush=True)\ntime.sleep(30)'])
    rows, start = launch.work(SPEC, 60), time.monotonic()
    next(rows)
    rows.close()
    assert started[0].poll() is not None and time.monotonic() - start < 20


def test_without_transformers_its_rows_say_so(monkeypatch):
    monkeypatch.setattr(launch.importlib.util, 'find_spec', lambda name: None)
    monkeypatch.setattr(launch, 'work', lambda *args: [dict(context=16)])
    spec = dict(SPEC, method='hf-static')
    assert launch.rows_of(spec, 60) == [
        dict(context=c, why='transformers is not installed')
        for c in (16, 32, 64)]
    assert launch.rows_of(dict(spec, method='jax-static'), 60) == [
        dict(context=16)]


def test_the_ceiling_is_measured_around_a_row_and_out_of_its_peak():
    """The better of two; what is forgotten is the warm-up and the first."""
    log, rates = [], [1e9, 3e9]

    class Backend:
        def bandwidth(megabytes):
            log.append(f'read {megabytes}')
            return dict.fromkeys(megabytes, rates.pop(0))

        def forget():
            log.append('forget')

        def peak():
            log.append('peak')
            return 123

        def device():
            return 'a card'

    class Logged(Fake):
        def run(self):
            log.append('run')
            return super().run()

    sizes = dict(SIZES, num_kv_heads=G)
    for given, better in (([1e9, 3e9], 3e9), ([5e9, 2e9], 5e9)):
        rates[:] = given
        log.clear()
        made = worker.one_row(Backend, Logged([(9, 9), (2, 4), (6, 8)]),
                              dict(megabytes=70, repeats=2), B, T, 1000,
                              sizes)
        assert log == ['read [70]', 'run', 'forget', 'run', 'run', 'peak',
                       'read [70]']
        assert made == dict(
            prefill_s=4, step_s=6, repeats=2, steps=2, ids=[],
            peak_bytes=123, bandwidth=better, device='a card',
            bytes=cases.step_bytes(sizes, 1000, B, T))


def test_a_row_that_would_take_too_long_is_left_out(monkeypatch, tmp_path):
    """By the runs of the row before: twice the context, twice the seconds.

    What it took to compile, here 60 s, is added as it was.
    """
    sizes = dict(SIZES, num_blks=1)
    file = tmp_path / 'w.safetensors'
    BACKENDS['torch'].d2l.save_weights(BACKENDS['torch'].gpt(**sizes), file)
    monkeypatch.setattr(cases, 'sizes', lambda model: sizes)
    clock = iter([0.0, 100.0, 150.0, 160.0])  # before and after a row
    monkeypatch.setattr(worker, 'time', SimpleNamespace(
        perf_counter=lambda: next(clock)))
    row = dict(repeats=1, prefill_s=16, steps=2, step_s=2)  # and a warm-up
    monkeypatch.setattr(worker, 'one_row', lambda *args: row)
    plan = dict(model='tiny', method='torch-static', batch=2, limit=139,
                contexts=[8, 16, 12], weights=str(file), steps=2)
    first, second, third = worker.rows(plan)
    assert first == dict(row, context=8, seconds=100.0)
    assert second == dict(context=16, why='left out: 140 s by the row before, '
                          'the limit is 139 s')
    assert third == dict(row, context=12, seconds=10.0)


# --- The command ------------------------------------------------------------


@pytest.mark.parametrize('flags, message', [
    (['--contexts', '0'], "--contexts: '0': expected a number above 0"),
    (['--contexts', '1.5'], "'1.5': expected a number above 0, a whole one"),
    (['--batches', 'two'], "--batches: 'two'"),
    (['--limit', 'inf'], "--limit: 'inf'"), (['--steps', '-1'], '--steps'),
    (['--repeats', '0'], '--repeats'), (['--models', 'gpt9'], 'gpt9'),
    (['--methods', 'torch-slow'], 'torch-slow'),
    (['--contexts', '8190', '--models', 'smollm2'],
     '8190 tokens + 16 new > 8192, the most that smollm2 has room for')])
def test_bad_flags_are_named_before_any_work(flags, message, capsys,
                                             monkeypatch):
    monkeypatch.setattr('d2l_ext.bench.__main__.bench', None)
    with pytest.raises(SystemExit) as stopped:
        main(flags)
    assert stopped.value.code == 2 and message in capsys.readouterr().err


def test_a_folder_that_cannot_be_is_named(tmp_path, capsys):
    (tmp_path / 'file').touch()
    assert main(['--small', '--out', str(tmp_path / 'file')]) == 1
    assert str(tmp_path / 'file') in capsys.readouterr().err


def test_a_full_disk_is_named(tmp_path, capsys, monkeypatch):
    def full(plan, out):
        raise OSError(28, 'No space left on device')
    monkeypatch.setattr('d2l_ext.bench.__main__.bench', full)
    assert main(['--small', '--out', str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        f'{tmp_path}: No space left on device\n')


def test_without_the_checkpoint_the_other_model_is_named(tmp_path, capsys,
                                                         monkeypatch):
    def missing(name):
        raise FileNotFoundError(f'{name} cannot be had')
    monkeypatch.setattr('d2l_ext.hub.fetch', missing)
    assert main(['--out', str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        'smollm2 cannot be had\nWithout it: --models gpt2-size\n')


@pytest.mark.parametrize('flags, folder', [
    ([], 'build/bench'), (['--small'], 'build/bench-small')])
def test_a_short_run_has_a_folder_of_its_own(flags, folder, tmp_path,
                                             monkeypatch):
    outs = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr('d2l_ext.hub.fetch', lambda name: name)
    monkeypatch.setattr('d2l_ext.bench.__main__.bench', lambda plan, out: (
        outs.append(str(out)) or ''))
    assert main(flags) == 0 and outs == [folder]


def plan_of(monkeypatch, tmp_path, *flags):
    plans = []
    monkeypatch.setattr('d2l_ext.bench.__main__.bench', lambda plan, out: (
        plans.append(plan) or ''))
    monkeypatch.setattr('d2l_ext.hub.fetch', lambda name: name)
    assert main([*flags, '--out', str(tmp_path)]) == 0
    return plans[0]


def test_flags_go_before_defaults(monkeypatch, tmp_path):
    plan = plan_of(monkeypatch, tmp_path)
    assert plan == cases.Plan(methods=cases.DEFAULT_METHODS, limit=600,
                              **DEFAULTS)
    plan = plan_of(monkeypatch, tmp_path, '--small', '--contexts', '9', '5',
                   '9', '--methods', 'hf-static', '--limit', '7')
    assert plan == cases.Plan(methods=('hf-static',), limit=7,
                              **SMALL | dict(contexts=(5, 9)))


def test_an_interrupted_run_keeps_its_rows(monkeypatch, tmp_path, capsys):
    def interrupted(plan, weights):
        yield row('torch-static')
        raise KeyboardInterrupt
    monkeypatch.setattr('d2l_ext.bench.__main__.save_weights',
                        lambda model, file: None)
    monkeypatch.setattr('d2l_ext.bench.__main__.measured', interrupted)
    assert main(['--small', '--out', str(tmp_path)]) == 130
    assert str(tmp_path) in capsys.readouterr().err
    kept = json.loads((tmp_path / 'table.json').read_text())['rows']
    assert [r['method'] for r in kept] == ['torch-static']
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        'plot.svg', 'table.json', 'table.txt']


def check_small(tmp_path, *methods):
    """The small case as `make bench BENCH=--small` runs it."""
    done = subprocess.run(
        [sys.executable, '-m', 'd2l_ext.bench', '--small', '--batches', '2',
         '--contexts', '16', '--methods', *methods,
         '--out', str(tmp_path / 'new' / 'folder')],
        text=True, capture_output=True, env=launch.environment())
    assert done.returncode == 0, done.stderr
    folder = tmp_path / 'new' / 'folder'
    assert done.stdout.endswith((folder / 'table.txt').read_text())
    assert sorted(path.name for path in folder.iterdir()) == [
        'plot.svg', 'table.json', 'table.txt']
    rows = json.loads((folder / 'table.json').read_text())['rows']
    assert [(r['context'], r['method']) for r in rows] == [
        (16, method) for method in methods]
    sizes = cases.sizes('tiny')
    num_params = sum(p.numel() for p in BACKENDS['torch'].d2l.GPT(
        **sizes).parameters())
    for r in rows:
        assert 'why' not in r, r
        assert r['bytes'] == cases.step_bytes(sizes, num_params, 2,
                                              r['context'])
        assert 0 < r['share'] < 1 and r['repeats'] == 2, r
        assert r['peak_bytes'] > 50e6 and r['bandwidth'] > 1e8, r
    assert not report.disagreements(rows)
    return rows


def test_the_small_case_runs(tmp_path):
    """A process for each; what they decode is held to the lessons above."""
    rows = check_small(tmp_path, 'jax-fast', 'hf-dynamic')
    assert rows[-1]['decode_ratio'] == 1 != rows[0]['decode_ratio']
