"""`python -m d2l_ext.exercises.export FOLDER > verdicts.csv`

Reads the verdicts that stand in executed notebooks (.ipynb, in FOLDER and
below), one row for each notebook and exercise. They are read, not checked
again: a student can write what he likes into a notebook. What cannot be read
gets a row that says so, and a line on stderr.
"""

import argparse
import csv
import json
import re
import sys
from pathlib import Path

from .engine import EXERCISES, VERDICTS

FIELDS = 'notebook', 'exercise', 'verdict', 'parts right', 'parts'
NOT_RUN, UNREADABLE = 'not run', 'unreadable'
CALL = re.compile(r'''\battempt\(\s*['"]([a-z][\w-]*)['"]''')
LINE = re.compile(rf'([a-z][\w-]*): ({"|".join(VERDICTS)})$')
PART = re.compile(rf' {{4}}(\w+): ({"|".join(VERDICTS)})(?:\.|$)')


def text_of(value):
    """A text of the format: a string, or a list of its lines."""
    return value if isinstance(value, str) else ''.join(map(str, value or ()))


def code_cells(notebook):
    """(source, what it printed) of each code cell."""
    for cell in notebook['cells']:
        if cell.get('cell_type') == 'code':
            yield text_of(cell.get('source')), ''.join(
                text_of(output.get('text')) for output
                in cell.get('outputs') or () if output.get('name') == 'stdout')


def verdicts(notebook):
    """{id: (verdict, parts right, parts)}; the last output counts."""
    found, cells = {}, list(code_cells(notebook))
    backend = next((b for b in ('torch', 'jax') if any(
        f'from d2l_ext import {b} as d2l' in source for source, _ in cells)),
        '')
    for source, printed in cells:
        for id in CALL.findall(source):
            found.setdefault(id, (NOT_RUN, 0, 0))
        id = None
        for line in printed.splitlines():
            match = LINE.match(line)
            if match and (match[1] in found or match[1] in EXERCISES):
                id, verdict = match.groups()
                known = EXERCISES.get(id)
                parts = len(known.asked(backend)) if known else 0
                found[id] = verdict, 0, parts
            elif id and (match := PART.match(line)) and match[2] == 'right':
                verdict, right, parts = found[id]
                found[id] = verdict, right + 1, parts
    return found


def rows(folder):
    """A row for each exercise of each notebook in a folder and below."""
    for path in sorted(folder.rglob('*.ipynb')):
        if '.ipynb_checkpoints' in path.parts:
            continue
        name = path.relative_to(folder).as_posix()  # any bytes, on Linux
        name = name.encode('utf-8', 'backslashreplace').decode()
        if name[0] in '=+-@':  # a spreadsheet would take it for a formula
            name = f'./{name}'
        try:
            found = verdicts(json.loads(path.read_text(encoding='utf-8-sig')))
        except Exception as error:  # whatever it is, the others still count
            print(f'{name}: {type(error).__name__}: {error}', file=sys.stderr)
            yield name, '', UNREADABLE, '', ''
            continue
        for id, row in found.items():
            yield name, id, *row


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog='python -m d2l_ext.exercises.export',
        description='The verdicts in executed notebooks, as CSV.')
    parser.add_argument('folder', type=Path, metavar='FOLDER')
    folder = parser.parse_args(arguments).folder
    if not folder.is_dir():
        parser.error(f'{folder} is no folder')
    writer = csv.writer(sys.stdout, lineterminator='\n')
    writer.writerow(FIELDS)
    writer.writerows(rows(folder))
    return 0


if __name__ == '__main__':
    sys.exit(main())
