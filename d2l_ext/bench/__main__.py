"""Time decoding: `python -m d2l_ext.bench [--small] [--models NAME ...]`."""

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from .. import hub
from . import cases, picture, report
from .launch import measured, save_weights

DESCRIPTION = '''Time prefill and decode of every method, with peak memory and
the bandwidth of this machine, and write table.txt, table.json and plot.svg.
Hugging Face transformers is a peer here, with the same weights; without it its
rows say so. On two cores all of it takes about two hours, and the weights of
each model half a GB of disk until the end.'''
# what a flag that is not given stands for, and with --small
DEFAULTS = dict(models=('gpt2-size', 'smollm2'),
                contexts=(128, 512, 1024, 2048), batches=(1, 8), steps=16,
                repeats=3, megabytes=400)
SMALL = dict(models=('tiny',), contexts=(16, 32), batches=(1, 2), steps=4,
             repeats=2, megabytes=4)


def positive(kind):
    def convert(text):
        try:
            value = kind(text)
        except ValueError:
            value = 0
        if not 0 < value < float('inf'):
            raise argparse.ArgumentTypeError(
                f'{text!r}: expected a number above 0'
                + (', a whole one' if kind is int else ''))
        return value
    return convert


def make_parser():
    parser = argparse.ArgumentParser('python -m d2l_ext.bench',
                                     description=DESCRIPTION)
    whole = positive(int)
    parser.add_argument('--models', nargs='+', metavar='NAME',
                        choices=cases.MODELS,
                        help=f'any of {", ".join(cases.MODELS)}')
    parser.add_argument('--methods', nargs='+', metavar='NAME',
                        choices=cases.METHODS,
                        default=cases.DEFAULT_METHODS,
                        help=f'any of {", ".join(cases.METHODS)}')
    parser.add_argument('--contexts', nargs='+', metavar='N', type=whole,
                        help='tokens per prompt (128 512 1024 2048)')
    parser.add_argument('--batches', nargs='+', metavar='N', type=whole,
                        help='prompts at once (1 8)')
    parser.add_argument('--steps', metavar='N', type=whole,
                        help='tokens decoded after the prompts (16)')
    parser.add_argument('--repeats', metavar='N', type=whole,
                        help='runs after the one that warms up (3)')
    parser.add_argument('--limit', metavar='SECONDS', type=positive(float),
                        default=600.0, help='for one row: it is left out '
                        'if the row before says it would take longer, and '
                        'stopped if it does (%(default)g)')
    parser.add_argument('--small', action='store_true',
                        help='a tiny model, short contexts: whether it works')
    parser.add_argument('--out', type=Path, metavar='FOLDER',
                        help='where the files go (build/bench; with --small '
                        'build/bench-small)')
    return parser


def make_plan(args, parser):
    """The Plan of a command line; ends the program for one that cannot be."""
    chosen = SMALL if args.small else DEFAULTS
    values = {name: chosen[name] if getattr(args, name, None) is None
              else getattr(args, name) for name in chosen}
    for name in ('contexts', 'batches'):
        values[name] = tuple(sorted(set(values[name])))
    longest = values['contexts'][-1] + values['steps']
    for model in values['models']:
        if longest > (room := cases.sizes(model)['max_len']):
            parser.error(f'{values["contexts"][-1]} tokens + '
                         f'{values["steps"]} new > {room}, the most that '
                         f'{model} has room for')
    for name in ('models', 'methods'):
        values[name] = tuple(dict.fromkeys(values.get(name, args.methods)))
    return cases.Plan(limit=args.limit, **values)


def say(row):
    """A line while it runs."""
    what = row.get('why') or (f'{row["batch"] / row["step_s"]:.1f} tokens/s, '
                              f'{row["seconds"]:.0f} s')
    print(f'{row["model"]}, batch {row["batch"]}, {row["method"]}, context '
          f'{row["context"]}: {what}', flush=True)


def bench(plan, out):
    """Measure, and write the files after each row; the table's text.

    What was measured stays if it is interrupted.
    """
    head, rows = report.header(), []
    with tempfile.TemporaryDirectory(prefix='.weights', dir=out) as folder:
        weights = {}
        for model in plan.models:
            weights[model] = Path(folder) / f'{model}.safetensors'
            save_weights(model, weights[model])
        try:
            for row in measured(plan, weights):
                rows.append(row)
                say(row)
                report.write(out, head, rows)
        finally:
            picture.draw(report.derived(rows), out / 'plot.svg')
    return report.write(out, head, rows)


def missing(plan):
    """Why the checkpoint cannot be had; None if it can, or need not."""
    try:
        if 'smollm2' in plan.models:
            hub.fetch('smollm2')
    except (OSError, ValueError) as error:
        return f'{error}\nWithout it: --models gpt2-size'


def main(argv=None):
    parser = make_parser()
    args = parser.parse_args(argv)
    plan = make_plan(args, parser)
    # a short run does not replace the table of a long one
    out = args.out or Path('build', 'bench-small' if args.small else 'bench')
    try:
        if why := missing(plan):
            print(why, file=sys.stderr)
            return 1
        out.mkdir(parents=True, exist_ok=True)
        print(bench(plan, out), end='')
    except OSError as error:
        print(f'{out}: {error.strerror or error}', file=sys.stderr)
        return 1
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f'\ninterrupted; what was measured is in {out}',
              file=sys.stderr)
        return 130
    return 0


if __name__ == '__main__':
    # a run that is ended takes its workers and its weights with it, too
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
