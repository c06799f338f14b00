"""Fetch data by hand: `python -m d2l_ext.fetch_data [--list] [NAME ...]`.

Without a name it fetches the text and the checkpoint that a run would use,
and says which they are.
"""

import argparse
import sys

from . import hub, runs

TITLES = {'timemachine': 'The Time Machine',
          'sotu1898': 'State of the Union addresses of 1898 and 1899'}


def text_lines():
    """Which text the run reads, from which files, what it stands in for."""
    chosen = runs.chosen('text')
    text = chosen or runs.default_text()
    paths = ' and '.join(map(hub.fetch, runs.TEXT_ASSETS[text]))
    line = f'text {text}: {TITLES[text]}, from {paths}'
    if text == 'timemachine':
        return line
    line += f'\nIt stands in for {TITLES["timemachine"]}, '
    if chosen:
        return line + 'as D2L_TEXT asks.'
    wanted = hub.ASSETS['timemachine']
    return (f'{line}of which no copy is on this machine.\n'
            '`D2L_TEXT=timemachine make data` tries the network again; or '
            'put\n'
            f'{wanted.filename} ({wanted.hash})\ninto {hub.data_folder()}\n'
            'or into a folder that D2L_DATA names.')


def checkpoint_line():
    """Which checkpoint the run reads, from which files.

    Where it cannot be had, why: the first lessons do without one, so they
    should not have to wait for it.
    """
    from .checkpoints import CHECKPOINTS  # takes a second, for a GGUF reader
    checkpoint = runs.chosen('checkpoint') or runs.default_checkpoint()
    try:
        paths = map(hub.fetch, CHECKPOINTS[checkpoint].assets)
        return f'checkpoint {checkpoint}: {" and ".join(paths)}'
    except OSError as error:
        return (f'checkpoint {checkpoint}: {error}\n'
                'Lessons 05 to 07 need it, the others do not.')


def list_assets():
    """Print where each asset lies; 1 if one of them is a wrong file."""
    status = 0
    for name in hub.ASSETS:
        try:
            where = hub.find(name) or 'not on this machine'
        except ValueError as error:
            where, status = error, 1
        print(f'{name:<13} {where}')
    return status


def main(argv=None):
    parser = argparse.ArgumentParser('python -m d2l_ext.fetch_data',
                                     description='Fetch the data of a run.')
    parser.add_argument('names', nargs='*', metavar='NAME',
                        help=f'any of {", ".join(hub.ASSETS)}; without one, '
                             f'the text and the checkpoint of the run')
    parser.add_argument('--list', action='store_true',
                        help='only say where each file lies')
    args = parser.parse_args(argv)
    try:
        if args.list:
            return list_assets()
        if not args.names:
            print(text_lines())
            print(checkpoint_line())
        for name in args.names:
            print(f'{name}: {hub.fetch(name)}')
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
