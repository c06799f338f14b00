"""Where a student stands, in a small file next to his notebooks.

The file is no proof of anything and holds no answers. One that is damaged
is set aside; a folder that cannot be written to costs the memory, no more.
A run that nobody watches writes none: it would record the solutions.
"""

import datetime
import json
import os
from pathlib import Path

from ..files import atomic_path

NAME = '.d2l_exercises.json'
VERDICTS = 'not attempted', 'right', 'not yet'


def read(folder='.'):
    """{id: {backend: {verdict, tries, when}}}; {} if there is none."""
    path = Path(folder) / NAME
    try:
        text = path.read_text(encoding='utf-8')
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError):
        text = ''
    try:
        return clean(json.loads(text))
    except (ValueError, TypeError, AttributeError, KeyError, OverflowError,
            RecursionError):
        set_aside(path)
        return {}


def clean(record):
    """The record if it has the form of one; ValueError if not."""
    for backends in record.values():
        for entry in backends.values():
            if entry['verdict'] not in VERDICTS:
                raise ValueError('a verdict that is none')
            entry['tries'] = int(entry.get('tries', 0))
    return record


def set_aside(path):
    """Rename a damaged file; it stays where it is if that fails."""
    name, number = f'{path.name}.damaged', 1
    while path.with_name(name).exists():
        number += 1
        name = f'{path.name}.damaged-{number}'
    try:
        os.replace(path, path.with_name(name))
        print(f'{path.name} is damaged: set aside as {name}')
    except OSError as error:
        print(f'{path.name} is damaged and cannot be set aside: {error}')


def remember(id, backend, verdict, folder='.'):
    """Keep a verdict; an untouched cell does not undo an earlier one."""
    if os.environ.get('D2L_HEADLESS'):
        return
    record = read(folder)
    entry = record.setdefault(id, {}).setdefault(
        backend, {'verdict': verdict, 'tries': 0})
    if verdict != 'not attempted':
        entry.update(verdict=verdict, tries=entry['tries'] + 1,
                     when=datetime.datetime.now().isoformat(' ', 'minutes'))
    try:
        with atomic_path(Path(folder) / NAME) as partial:
            Path(partial).write_text(json.dumps(record, indent=1) + '\n',
                                     encoding='utf-8')
    except OSError as error:
        print(f'this verdict is not kept: {error}')


def standing(backends):
    """The last verdicts of one exercise in a few words."""
    tried = {name: entry for name, entry in backends.items()
             if entry['verdict'] != 'not attempted'}
    words = {entry["verdict"] for entry in tried.values()}
    if not tried:
        return 'no', 'not attempted'
    return 'yes', (words.pop() if len(words) == 1 and len(tried) == len(
        backends) else ', '.join(
        f'{entry["verdict"]} ({name or "?"})'
        for name, entry in sorted(backends.items())))
