"""The book's small helpers, plotting included."""

import matplotlib
import numpy as np
import pytest

from d2l_ext import plotting, utils

matplotlib.use('Agg')


def test_hyperparameters_are_kept():
    class Net(utils.HyperParameters):
        def __init__(self, width, depth=2, *, lr=0.1, secret=None):
            self.save_hyperparameters(ignore=['secret'])

    net = Net(7, lr=0.3, secret=1)
    assert (net.width, net.depth, net.lr) == (7, 2, 0.3)
    assert net.hparams == {'width': 7, 'depth': 2, 'lr': 0.3}
    assert not hasattr(net, 'secret')


def test_a_class_grows_and_the_function_stays():
    class Thing:
        pass

    thing = Thing()

    @utils.add_to_class(Thing)
    def double(self, x):
        return 2 * x

    assert thing.double(4) == 8 and double(None, 4) == 8


def test_a_wrong_shape_is_named():
    utils.check_shape(np.zeros((2, 3)), [2, 3])
    with pytest.raises(ValueError, match=r'\(2, 3\), expected \(3, 2\)'):
        utils.check_shape(np.zeros((2, 3)), (3, 2))


def test_print_wrapped_breaks_at_blanks_and_indents(capsys):
    utils.print_wrapped('one two', 'three\nfour', width=9)
    assert capsys.readouterr().out == 'one two\n    three\nfour\n'


def test_print_table_breaks_long_cells_in_their_columns(capsys):
    """At blanks, not at hyphens; no blank at the end of a line."""
    utils.print_table(('name', 'what it is'), [
        ('a', 'short'), ('two words', 'more-than one line of it'),
        (1.5, None)], (6, 13))
    assert capsys.readouterr().out == (
        'name    what it is\n'
        '------  -------------\n'
        'a       short\n'
        'two     more-than one\n'
        'words   line of it\n'
        '1.5     None\n')


def test_print_table_keeps_the_place_of_an_empty_cell(capsys):
    utils.print_table(('a', 'b', 'c'), [('', 'x', 'y')], (2, 1, 2))
    assert capsys.readouterr().out.splitlines() == [
        'a   b  c', '--  -  --', '    x  y']


@pytest.mark.parametrize('header, row', [
    (('a', 'b'), ('x',)), (('a', 'b'), ('x', 'y', 'z')),
    (('a',), ('x', 'y')), (('a', 'b', 'c'), ('x', 'y'))])
def test_print_table_refuses_a_row_of_another_length(header, row):
    wrong = len(header) if len(header) != 2 else len(row)
    with pytest.raises(ValueError, match=f'{wrong} cells, expected 2'):
        utils.print_table(header, [row], (3, 4))


def test_plot_draws_each_line_with_its_own_mark():
    from matplotlib import pyplot as plt
    plotting.plot([1, 2, 4], [[1, 2, 3], [3, 2, 1]], xlabel='n (tokens)',
                  ylabel='time (ms)', legend=['a', 'b'], xscale='log')
    axes = plt.gca()
    lines = axes.get_lines()
    assert [line.get_ydata().tolist() for line in lines] == [
        [1, 2, 3], [3, 2, 1]]
    assert lines[0].get_linestyle() != lines[1].get_linestyle()
    assert lines[0].get_marker() != lines[1].get_marker()
    assert axes.get_xlabel() == 'n (tokens)' and axes.get_xscale() == 'log'
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ['a', 'b']
    plt.gcf().canvas.draw()
    assert [t.get_text() for t in axes.get_xticklabels()] == ['1', '2', '4']
    assert not any(t.get_text() for t in axes.get_xticklabels(minor=True))
    plt.close('all')


def test_plot_without_y_counts_from_zero_and_takes_arrays():
    from matplotlib import pyplot as plt
    plotting.plot(np.array([[5., 6.], [7., 8.]]))
    assert [line.get_xdata().tolist() for line in plt.gca().get_lines()] == [
        [0, 1], [0, 1]]
    plt.close('all')
    with pytest.raises(ValueError, match='2 lines in X, 3 in Y'):
        plotting.plot([[1], [2]], [[1], [2], [3]])
    plt.close('all')


def test_heatmaps_stand_in_a_grid_with_labels_at_its_edges():
    """Each matrix in its place; y at the left, x at the bottom, one bar."""
    from matplotlib import pyplot as plt
    matrices = np.random.default_rng(0).random((2, 3, 4, 5))
    plotting.show_heatmaps(matrices, 'keys', 'queries', titles=list('abc'),
                           figsize=(6, 4), cmap='Blues', norm='log')
    *grid, bar = plt.gcf().axes
    assert len(grid) == 6
    for i, axes in enumerate(grid):
        [image] = axes.get_images()
        row, column = divmod(i, 3)
        np.testing.assert_array_equal(image.get_array(),
                                      matrices[row, column])
        assert image.get_cmap().name == 'Blues'
        assert type(image.norm).__name__ == 'LogNorm'
        assert axes.get_xlabel() == ('keys' if row == 1 else '')
        assert axes.get_ylabel() == ('queries' if column == 0 else '')
        assert axes.get_title() == 'abc'[column]
    assert tuple(plt.gcf().get_size_inches()) == (6, 4)
    plt.close('all')


def test_a_single_heatmap_takes_an_array_of_either_backend(backend):
    from matplotlib import pyplot as plt
    plotting.show_heatmaps(backend.array(np.ones((1, 1, 2, 3))), 'x', 'y')
    axes, bar = plt.gcf().axes
    assert axes.get_images()[0].get_array().shape == (2, 3)
    assert axes.get_title() == ''
    plt.close('all')


def test_one_bar_serves_all_heatmaps():
    """Equal values have equal shades wherever they stand; 0 has no log."""
    from matplotlib import pyplot as plt
    matrices = np.arange(24.).reshape(1, 2, 3, 4)
    for norm, least in ((None, 0), ('log', 1)):
        plotting.show_heatmaps(matrices, 'x', 'y', norm=norm)
        *grid, bar = plt.gcf().axes
        limits = [axes.get_images()[0].get_clim() for axes in grid]
        assert limits == [(least, 23)] * 2
        assert bar.get_ylim() == pytest.approx((least, 23))
        plt.close('all')


@pytest.mark.parametrize('shape', [(4, 5), (3, 4, 5), (1, 2, 3, 4, 5)])
def test_heatmaps_need_four_axes(shape):
    with pytest.raises(ValueError, match=f'shape .{shape[0]}, .*expected '
                                         '.rows, columns, height, width'):
        plotting.show_heatmaps(np.zeros(shape), 'x', 'y')


def test_bars_stand_in_order_with_a_line_across():
    """The first name above, each bar as long as its value."""
    from matplotlib import pyplot as plt
    axes = plotting.show_bars(['a', 'b'], [3, 1.5], 'ms', line=1,
                              line_label='least', figsize=(5, 3))
    assert [bar.get_width() for bar in axes.patches] == [3, 1.5]
    assert [label.get_text() for label in axes.get_yticklabels()] == ['a', 'b']
    low, high = axes.get_ylim()
    assert low > high, 'the first bar stands below'
    assert list(axes.lines[0].get_xdata()) == [1, 1]
    assert axes.get_legend().get_texts()[0].get_text() == 'least'
    assert axes.get_xlabel() == 'ms'
    assert tuple(plt.gcf().get_size_inches()) == (5, 3)
    with pytest.raises(ValueError, match='2 names for 1 values'):
        plotting.show_bars(['a', 'b'], [1], 'ms')
    plt.close('all')


def test_timeit_is_in_seconds(backend):
    """The median of reps calls, after one that does not count."""
    import time
    calls = []

    def f():
        calls.append(len(calls))
        time.sleep(0.2 if calls == [0] else 0.02)
        return backend.array(np.zeros(2))

    assert 0.018 < backend.d2l.timeit(f, reps=3) < 0.15
    assert len(calls) == 4


def test_timeit_hands_the_times_to_the_one_who_picks(backend):
    """One per repeat, the warm-up left out; no repeat is none to pick."""
    calls = []
    assert backend.d2l.timeit(lambda: calls.append(1), 4, pick=len) == 4
    assert len(calls) == 5
    with pytest.raises(ValueError, match='reps=0'):
        backend.d2l.timeit(lambda: None, reps=0)


def test_jax_timings_wait_for_the_work(monkeypatch):
    """A call returns before its work is done, so timeit blocks on it."""
    import jax

    from d2l_ext import jax as d2l
    waited = []
    monkeypatch.setattr(jax, 'block_until_ready', waited.append)
    d2l.timeit(lambda: 'result', reps=2)
    assert waited == ['result'] * 3


def test_both_backends_offer_the_books_names(backend):
    names = '''GPT TransformerBlock MultiHeadAttention TimeMachine Vocab
        BPETokenizer GPT2_PATTERN train_lm val_loss download DATA_HUB
        DATA_URL plot set_figsize check_shape print_wrapped add_to_class
        try_gpu HyperParameters rope timeit'''.split()
    assert not [name for name in names if not hasattr(backend.d2l, name)]
    for name in ('generate', 'generate_cached'):
        assert hasattr(backend.d2l.GPT, name)
    assert 'cpu' in str(backend.d2l.try_gpu(99)).lower()
