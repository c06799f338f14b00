"""`make lab`: copies of the notebooks for a student to change, in work/.

A copy is a plain .ipynb, paired with nothing. Whatever a student changed
or ran is kept; only an untouched copy follows its source. On request
(`make fresh NB=NAME`) the old copy is set aside under a dated name.
"""

import argparse
import datetime
import hashlib
import json
import os
import sys
from pathlib import Path

import jupytext
import nbformat

from .files import atomic_path
from .notebooks import ROOT, find, sources

MANIFEST = '.d2l_ext.json'  # hashes of the drawings as copied


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def content_hash(notebook):
    """A hash of the cells' sources: not of outputs, ids or metadata."""
    cells = [(cell.cell_type, cell.source) for cell in notebook.cells]
    return sha256(json.dumps(cells).encode())


def was_run(notebook):
    """Whether results stand in a copy: they are the student's, too."""
    return any(cell.cell_type == 'code'
               and (cell.outputs or cell.execution_count is not None)
               for cell in notebook.cells)


def make_copy(source):
    """A source as the notebook that a student gets."""
    notebook = jupytext.read(source)
    notebook.metadata.pop('jupytext', None)
    notebook.metadata['d2l_ext'] = {'source': sha256(source.read_bytes()),
                                    'copy': content_hash(notebook)}
    return notebook


def write(path, data):
    with atomic_path(path) as partial:
        Path(partial).write_bytes(data)


def write_copy(notebook, path):
    write(path, (nbformat.writes(notebook) + '\n').encode())


def bring_up(source, copy):
    """Write or update one copy if that loses nothing; returns what was done.

    '' means that the copy was up to date.
    """
    if not copy.exists():
        write_copy(make_copy(source), copy)
        return 'written'
    try:
        old = nbformat.read(copy, as_version=4)
    except Exception as error:  # whatever it is, it is the student's file
        return (f'kept, but it is no readable notebook ({error}); a clean '
                f'one: make fresh NB={source.stem}')
    mark = old.metadata.get('d2l_ext', {})
    current = mark.get('source') == sha256(source.read_bytes())
    if content_hash(old) != mark.get('copy') or was_run(old):
        return '' if current else (
            f'kept, yours; the source is newer: make fresh NB={source.stem}')
    if current:
        return ''
    write_copy(make_copy(source), copy)
    return 'updated'


def aside(copy):
    """A dated name for an old copy that no file has yet."""
    base = f'{copy.stem}-{datetime.date.today():%Y-%m-%d}'
    path, number = copy.with_name(f'{base}.ipynb'), 1
    while path.exists():
        number += 1
        path = copy.with_name(f'{base}-{number}.ipynb')
    return path


def freshen(source, copy):
    """Set an existing copy aside and write a clean one."""
    notebook = make_copy(source)  # first: if it fails nothing was moved
    said = 'written'
    if copy.exists():
        old = aside(copy)
        os.rename(copy, old)
        said = f'written, the old one is {old.name}'
    write_copy(notebook, copy)
    return said


# --- The drawings -----------------------------------------------------------


def read_manifest(path):
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError):  # lost: then a differing drawing is kept
        return {}


def bring_up_drawings(folder, work):
    """Copy notebooks/img; a drawing that a student changed is kept."""
    manifest = work / MANIFEST
    known = read_manifest(manifest)
    marks, said = dict(known), {}
    for source in sorted(p for p in folder.rglob('*') if p.is_file()):
        name = source.relative_to(folder.parent).as_posix()
        copy, data = work / name, source.read_bytes()
        old = sha256(copy.read_bytes()) if copy.exists() else None
        if old not in (None, sha256(data), known.get(name)):
            said[name] = 'kept, yours'
            continue
        if old != sha256(data):
            copy.parent.mkdir(parents=True, exist_ok=True)
            write(copy, data)
            said[name] = 'written' if old is None else 'updated'
        marks[name] = sha256(data)
    if marks != known:
        write(manifest, json.dumps(marks, indent=1).encode())
    return said


# --- The command -----------------------------------------------------------


def main(arguments=None, root=ROOT):
    parser = argparse.ArgumentParser(
        prog='python -m d2l_ext.student_copies',
        description='Copies of the notebooks to work in, in work/.')
    parser.add_argument('--fresh', metavar='NAME', action='append',
                        default=[], help='set this copy aside and write a '
                                         'clean one')
    options = parser.parse_args(arguments)
    try:
        fresh = find(options.fresh, root) if options.fresh else []
    except ValueError as error:
        parser.error(str(error))
    try:
        bring_up_all(root, root / 'work', fresh)
    except OSError as error:  # a full disk, a folder that is none
        print(f'the copies in work/ are not all there: {error}',
              file=sys.stderr)
        return 1
    return 0


def bring_up_all(root, work, fresh):
    """Every copy and drawing, and a line for each that was not current."""
    work.mkdir(exist_ok=True)
    said = {}
    for source in sources(root):
        copy = work / f'{source.stem}.ipynb'
        said[copy.name] = (freshen(source, copy) if source in fresh
                           else bring_up(source, copy))
    said |= bring_up_drawings(root / 'notebooks' / 'img', work)
    for name, what in said.items():
        if what:
            print(f'work/{name}: {what}')
    print(f'work/: {len(sources(root))} notebooks')


if __name__ == '__main__':
    sys.exit(main())
