"""The two notebooks of a pair tell one story: what must be the same in both.

Compared before anything runs. A cell tagged `backend-only` (and the
expected output below it) is left out and says why in its metadata:
`# %% tags=["backend-only"] why="growing is what JAX cannot do"`.
"""

import ast
import difflib
import re

import jupytext

from .output_blocks import (
    Fault,
    blocks_in,
    headings,
    headings_above,
    layout_faults,
    masked,
    prose_lines,
    tags,
)

BACKENDS = ('torch', 'jax')
ANCHOR = re.compile(r'\(([^()\s]+)\)=\s*$|<a (?:id|name)="([^"]+)"')
FORBIDDEN_TAGS = ('skip-execution',)


def pairs(folder):
    """({name: (torch path, jax path)}, files without a partner)."""
    found, alone = {}, []
    paths = {path.stem: path for path in sorted(folder.glob('*.py'))}
    for stem, path in paths.items():
        name, _, backend = stem.rpartition('_')
        partners = [paths.get(f'{name}_{b}') for b in BACKENDS]
        if backend in BACKENDS and all(partners):
            found[name] = tuple(partners)
        else:
            alone.append(path)
    return found, alone


def shared_cells(cells):
    """The cells that both notebooks of a pair must have."""
    own = False  # whether the code cell above is one backend's own
    for cell in cells:
        below_own = own and 'expected' in tags(cell)
        own = (cell.cell_type == 'code' and 'backend-only' in tags(cell))
        if not below_own and 'backend-only' not in tags(cell):
            yield cell


def anchors(text):
    for line in prose_lines(text):
        for m in ANCHOR.finditer(line):
            yield m[1] or m[2]


def cell_skeleton(cell):
    if cell.cell_type == 'markdown':
        for anchor in anchors(cell.source):
            yield f'anchor {anchor}'
        for heading in headings(cell.source):
            yield f'heading {heading}'
    if 'exercise' in cell.metadata:
        yield f'exercise {cell.metadata["exercise"]}'
    if 'expected' in tags(cell):
        for block in blocks_in(cell):
            for line in block.lines:
                yield f'{block}: {masked(line)}'


def skeleton(cells):
    """Headings, anchors, exercises and printed lines, numbers masked."""
    return [line for cell in shared_cells(cells)
            for line in cell_skeleton(cell)]


def prose(cells):
    """The lines of the shared markdown cells, with the cells' borders."""
    return [line for cell in shared_cells(cells)
            if cell.cell_type == 'markdown' and 'expected' not in tags(cell)
            for line in ('--- markdown cell', *cell.source.split('\n'))]


def differences(torch_path, jax_path):
    """A readable diff of what a pair should share, '' if it does."""
    left, right = (jupytext.read(path).cells
                   for path in (torch_path, jax_path))
    text = ''
    for what, lines in (('skeleton', skeleton), ('prose', prose)):
        diff = difflib.unified_diff(
            lines(left), lines(right), f'{torch_path.name} {what}',
            f'{jax_path.name} {what}', n=2, lineterm='')
        text += ''.join(f'{line}\n' for line in diff)
    return text


# --- Rules for each notebook ------------------------------------------------


def syntax(cell):
    """The parsed source of a code cell; SyntaxError for magics, too."""
    return ast.parse(cell.source)


def imports_something(tree):
    return any(isinstance(node, (ast.Import, ast.ImportFrom))
               for node in tree.body)


def names_both_sizes(tree):
    """Whether `small` and `full` both stand in a cell, as keys or words."""
    words = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            words.add(node.value)
        elif isinstance(node, ast.keyword):
            words.add(node.arg)
        elif isinstance(node, ast.Name):
            words.add(node.id)
    return {'small', 'full'} <= words


def cell_breaks(cell):
    """Rules that one cell breaks."""
    for tag in FORBIDDEN_TAGS:
        if tag in tags(cell):
            yield f'tag `{tag}` hides a cell from the run'
    if 'backend-only' in tags(cell) and not cell.metadata.get('why'):
        yield 'a `backend-only` cell must say why="..."'
    if cell.cell_type != 'code':
        return
    if 'nbmake' in cell.metadata:
        yield 'nbmake metadata changes a run behind the reader\'s back'
    if not cell.source.strip():
        yield 'an empty code cell'
    try:
        syntax(cell)
    except SyntaxError as error:
        yield f'not plain Python, a magic? {error.text or error.msg}'.strip()


def header_breaks(metadata):
    """Rules that the header breaks."""
    if metadata.get('execution', {}).get('allow_errors'):
        yield 'header `allow_errors` lets any failure pass'
    kernel = metadata.get('kernelspec', {}).get('name')
    if kernel != 'python3':
        yield f'header kernelspec {kernel!r}, expected \'python3\''


def key_cell_breaks(cells):
    """One cell imports, one holds the sizes of both profiles."""
    trees = []
    for cell in cells:
        try:
            trees += [syntax(cell)] if cell.cell_type == 'code' else []
        except SyntaxError:
            yield 'imports and sizes not looked for: a cell is not Python'
            return
    imports = sum(map(imports_something, trees))
    if imports != 1:
        yield f'cells that import: {imports}, expected 1'
    if not any(map(names_both_sizes, trees)):
        yield 'no sizes cell with `small` and `full` side by side'


# --- Exercises --------------------------------------------------------------

HINT = re.compile(r'<details>\s*<summary>Hint (\d+)</summary>(.*?)</details>',
                  re.DOTALL)


def attempts(cell):
    """The exercise ids that a code cell makes attempts at."""
    try:
        tree = syntax(cell) if cell.cell_type == 'code' else ast.Module([], [])
    except SyntaxError:
        return []
    return [node.args[0].value for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and ast.unparse(node.func) in ('d2l.attempt', 'attempt')
            and node.args and isinstance(node.args[0], ast.Constant)]


def hints_in(cell):
    return [' '.join(text.split()) for _, text in HINT.findall(cell.source)]


def statement_breaks(exercise, statement, hints):
    """Why the two markdown cells above a scratch cell are not as they are."""
    kinds = ', '.join(f'[{kind}]' for kind in exercise.kinds)
    for line in (f'### Exercise: {exercise.title}',
                 f'*{kinds}, about {exercise.minutes} minutes.*'):
        if line not in statement.source.split('\n'):
            yield f'its statement has no line {line!r}'
    if hints_in(hints) != [' '.join(hint.split()) for hint in exercise.hints]:
        yield 'its hints are not those of d2l.hint, each in a <details>'


def scratch_breaks(cells, i, exercises):
    """Rules that the exercise whose scratch cell is cells[i] breaks."""
    id = cells[i].metadata['exercise']
    if id not in exercises:
        yield 'd2l_ext.exercises does not know it'
        return
    # between statement and hints may stand what one backend asks for
    above = [cell for cell in cells[:i] if cell.cell_type == 'code'
             or 'backend-only' not in tags(cell)][-2:]
    around = above + cells[i + 1:i + 3]
    if [cell.cell_type for cell in around] != [
            'markdown', 'markdown', 'code', 'markdown']:
        yield ('around its scratch cell stand not statement, hints, check '
               'and expected output')
        return
    statement, hints, check, expected = around
    yield from statement_breaks(exercises[id], statement, hints)
    if attempts(check) != [id]:
        yield f'the cell below its scratch cell is no d2l.attempt({id!r}, ...)'
    if [block.lines for block in blocks_in(expected)] != [
            (f'{id}: not attempted',)]:
        yield 'below its check is not expected that it is not attempted'


def exercise_breaks(path, exercises):
    """Rules on exercises that a notebook breaks, as text.

    exercises: {id: Exercise}, all that there are.
    """
    cells = jupytext.read(path).cells
    lesson = path.stem.rpartition('_')[0]
    found = [cell.metadata['exercise'] for cell in cells
             if 'exercise' in cell.metadata]
    wanted = [id for id, exercise in exercises.items()
              if exercise.lesson == lesson]
    broken = [f'{id}: {why}' for i, cell in enumerate(cells)
              if (id := cell.metadata.get('exercise'))
              for why in scratch_breaks(cells, i, exercises)]
    if sorted(found) != sorted(wanted):
        broken.append(f'exercises {found}, registered for the lesson {wanted}')
    return broken


def solution_breaks(path, ids):
    """Rules that a file of solutions to these exercises breaks, as text."""
    if not path.exists():
        return [f'{path.name}: no solution to {id}' for id in ids]
    text = path.read_text()
    notebook = jupytext.reads(text, fmt='py:percent')
    broken = list(header_breaks(notebook.metadata))
    if body(jupytext.writes(notebook, fmt='py:percent')) != body(text):
        broken.append('jupytext does not write back what it read')
    broken += [why for cell in notebook.cells for why in cell_breaks(cell)]
    broken += map(str, layout_faults(notebook.cells))
    tried = [id for cell in notebook.cells if 'exercise' in cell.metadata
             for id in attempts(cell)]
    tagged = [cell.metadata['exercise'] for cell in notebook.cells
              if 'exercise' in cell.metadata and attempts(cell)]
    if tried != tagged or sorted(tried) != sorted(ids):
        broken.append(f'attempts at {tried}, in cells of {tagged}, expected '
                      f'one at each of {ids}')
    return broken


def body(text):
    """A percent notebook without its header."""
    return re.sub(r'\A# ---\n.*?^# ---\n+', '', text,
                  flags=re.DOTALL | re.MULTILINE)


def rule_breaks(path):
    """Everything in one notebook that a rule forbids, as text."""
    text = path.read_text()
    notebook = jupytext.reads(text, fmt='py:percent')
    where = headings_above(notebook.cells)
    found = list(header_breaks(notebook.metadata))
    found += key_cell_breaks(notebook.cells)
    if body(jupytext.writes(notebook, fmt='py:percent')) != body(text):
        found.append('jupytext does not write back what it read')
    found += [Fault(where[i], i, why) for i, cell in enumerate(notebook.cells)
              for why in cell_breaks(cell)]
    found += layout_faults(notebook.cells)
    return [str(item) for item in found]
