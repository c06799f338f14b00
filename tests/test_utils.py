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
