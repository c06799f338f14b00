"""`make save`: export what notebooks mark `#@save` to one module a backend.

A function, class or assignment at the top level of a code cell is exported
when the marker stands on one of its lines; for a function or class, on its
decorators or head. `python -m d2l_ext.save_export --check` only compares.
"""

import argparse
import ast
import builtins
import io
import re
import symtable
import sys
import tokenize
from dataclasses import dataclass
from pathlib import Path

import jupytext

from .files import atomic_path
from .mirror import BACKENDS
from .notebooks import ROOT
from .output_blocks import headings_above

MARKER = re.compile(r'#\s*@save\b')
DEFINITION = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
ASSIGNMENT = (ast.Assign, ast.AnnAssign)


class SaveError(ValueError):
    """Something marked that cannot be exported; the text says where."""


@dataclass
class Saved:
    """One exported statement, without its marker."""

    notebook: str
    heading: str
    names: list      # what it defines; 'GPT.generate' for a method
    source: str
    is_definition: bool

    @property
    def where(self):
        return f'{self.notebook}, {self.heading or "top"}'


# --- From a cell to its marked statements -----------------------------------


def markers(source):
    """{line number: (column, comment)} of the marked lines, from 1."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {token.start[0]: (token.start[1], token.string)
            for token in tokens if token.type == tokenize.COMMENT
            and MARKER.search(token.string)}


def first_line(node):
    """The line of a statement's first decorator, or its own."""
    return min([node.lineno, *(d.lineno for d in
                               getattr(node, 'decorator_list', []))])


def marked_lines(node):
    """The lines on which a marker exports this statement."""
    if isinstance(node, DEFINITION):
        end = max(node.lineno, first_line(node.body[0]) - 1)
        return range(first_line(node), end + 1)
    return range(node.lineno, node.end_lineno + 1)


def without_marker(line, column, comment):
    rest = MARKER.sub('', comment, count=1).strip()
    if rest and not rest.startswith('#'):
        rest = f'# {rest}'
    code = line[:column].rstrip()
    return f'{code}  {rest}' if rest else code


def statement_source(source, node, marks):
    """The text of a statement, its own marker taken off."""
    lines = source.split('\n')
    for number, mark in marks.items():
        lines[number - 1] = without_marker(lines[number - 1], *mark)
    return '\n'.join(lines[first_line(node) - 1:node.end_lineno])


def attached_to(node):
    """'GPT' for a function with @d2l.add_to_class(d2l.GPT), else ''."""
    for decorator in getattr(node, 'decorator_list', []):
        if isinstance(decorator, ast.Call) and decorator.args:
            called = ast.unparse(decorator.func)
            if called.removeprefix('d2l.') == 'add_to_class':
                return ast.unparse(decorator.args[0]).removeprefix('d2l.')
    return ''


def defined_names(node):
    """The names that a statement defines; SaveError if it can define none."""
    if isinstance(node, DEFINITION):
        owner = attached_to(node)
        return [f'{owner}.{node.name}' if owner else node.name]
    if isinstance(node, ASSIGNMENT):
        targets = getattr(node, 'targets', None) or [node.target]
        names = [name for target in targets for name in ast.walk(target)
                 if isinstance(name, ast.Name)]
        if all(isinstance(t, (ast.Name, ast.Tuple)) for t in targets):
            return [name.id for name in names]
    raise SaveError('#@save exports functions, classes and assignments to '
                    'names only')


def check_marks(source, node, marks):
    """SaveError for a marker in a body or on a line of its own."""
    for line, (column, _) in marks.items():
        before = source.split('\n')[line - 1][:column]
        if line not in marked_lines(node) or not before.strip():
            raise SaveError(f'line {line} of the cell: #@save must stand on '
                            'the head of a top-level statement')


def marked_statements(source):
    """(node, source) of each marked statement of a code cell."""
    if not MARKER.search(source):
        return
    tree, marks = ast.parse(source), markers(source)
    for node in tree.body:
        own = {line: marks.pop(line) for line in list(marks)
               if first_line(node) <= line <= node.end_lineno}
        check_marks(source, node, own)
        if own:
            yield node, statement_source(source, node, own)
    for line in marks:
        raise SaveError(f'line {line} of the cell: #@save stands on no '
                        'statement')


# --- From a notebook to what it saves ----------------------------------------


def saved_in(path):
    """What one notebook saves, in order."""
    cells = jupytext.read(path).cells
    for cell, heading in zip(cells, headings_above(cells), strict=True):
        if cell.cell_type != 'code':
            continue
        try:
            for node, source in marked_statements(cell.source):
                yield Saved(path.stem, heading, defined_names(node), source,
                            isinstance(node, DEFINITION))
        except (SaveError, SyntaxError) as error:
            raise SaveError(f'{path.name}, {heading or "top"}: '
                            f'{error}') from error


def imports_in(path):
    """{bound name: (module, name or None, alias or None)} of a notebook."""
    found = {}
    for cell in jupytext.read(path).cells:
        if cell.cell_type != 'code':
            continue
        for node in ast.parse(cell.source).body:
            if isinstance(node, ast.Import):
                for a in node.names:
                    bound = a.asname or a.name.split('.')[0]
                    found[bound] = (a.name, None, a.asname)
            elif isinstance(node, ast.ImportFrom):
                for a in node.names:
                    found[a.asname or a.name] = (node.module, a.name,
                                                 a.asname)
    return found


def globals_used(source):
    """The module-level names that a piece of code reads, builtins left out."""
    used, tables = set(), [symtable.symtable(source, 'cell', 'exec')]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            outer = (symbol.is_referenced() if table.get_type() == 'module'
                     else symbol.is_global())
            if outer and not hasattr(builtins, symbol.get_name()):
                used.add(symbol.get_name())
    return used


def needed_imports(saved, imports, defined):
    """The imports that exported statements of one notebook use.

    SaveError for a name that is neither imported nor saved: it would fail
    where the export is imported.
    """
    needed = {}
    for item in saved:
        for name in sorted(globals_used(item.source) - defined):
            if name not in imports:
                raise SaveError(f'{item.where}: {item.names[0]} uses '
                                f'{name!r}, which is neither imported nor '
                                'saved')
            needed[name] = imports[name]
    return needed


def refuse_twice(saved):
    """SaveError if one name is saved in two places."""
    places = {}
    for item in saved:
        for name in item.names:
            if name in places:
                raise SaveError(f'{name} is saved twice: in {places[name]} '
                                f'and in {item.where}')
            places[name] = item.where


# --- The generated module -------------------------------------------------


def import_section(module):
    """0 standard library, 1 installed packages, 2 this project."""
    top = module.split('.')[0]
    if top == 'd2l_ext':
        return 2
    return 0 if top in sys.stdlib_module_names else 1


def from_line(module, names):
    """`from module import names`, over several lines if it is too long."""
    line = f'from {module} import {", ".join(names)}'
    if len(line) <= 79:
        return line
    return '\n'.join([f'from {module} import (',
                      *(f'    {name},' for name in names), ')'])


def import_order(name):
    """Constants, then classes, then the rest, as import sorters do."""
    kind = 0 if name.isupper() and len(name) > 1 else 2 - name[0].isupper()
    return kind, name.lower(), name


def import_lines(imports):
    """Import statements for the values of imports_in, sorted and grouped."""
    plain, members, lines = set(), {}, []
    for module, name, alias in imports:
        suffix = f' as {alias}' if alias else ''
        if name is None:
            plain.add((module, f'import {module}{suffix}'))
        elif alias:
            members.setdefault((module, alias), []).append(f'{name}{suffix}')
        else:
            members.setdefault((module, ''), []).append(name)
    for section in range(3):
        group = [line for module, line in sorted(plain)
                 if import_section(module) == section]
        group += [from_line(module, sorted(set(names), key=import_order))
                  for (module, _), names in sorted(members.items())
                  if import_section(module) == section]
        lines += ['\n'.join(group)] if group else []
    return '\n\n'.join(lines)


def all_line(names):
    line = f'__all__ = [{", ".join(map(repr, names))}]'
    if len(line) <= 79:
        return line
    return '\n'.join(['__all__ = [', *(f'    {name!r},' for name in names),
                      ']'])


def statements(saved):
    """The exported statements, each group under the place it comes from."""
    text, place = '', None
    for number, item in enumerate(saved):
        loose = item.is_definition or (number
                                       and saved[number - 1].is_definition)
        if item.where != place or loose:
            text += '\n\n' if loose or number == 0 else '\n'
        if item.where != place:
            text += f'# from {item.where}\n'
        text, place = text + item.source + '\n', item.where
    return text


def merged_imports(paths, saved, defined):
    """All needed imports; SaveError if one name means two things."""
    merged, origin = {}, {}
    for path in paths:
        mine = [item for item in saved if item.notebook == path.stem]
        if not mine:
            continue
        for name, what in needed_imports(mine, imports_in(path),
                                         defined).items():
            if merged.setdefault(name, what) != what:
                raise SaveError(f'{name!r} is imported differently in '
                                f'{origin[name]} and {path.stem}')
            origin.setdefault(name, path.stem)
    return import_lines(merged.values())


def export(paths):
    """The text of saved.py for the notebooks of one backend."""
    saved = [item for path in paths for item in saved_in(path)]
    refuse_twice(saved)
    names = [name for item in saved for name in item.names]
    plain = [name for name in names if '.' not in name]
    # an attached method is a function of the module, too
    imports = merged_imports(paths, saved,
                             {name.rpartition('.')[2] for name in names})
    notebooks = list(dict.fromkeys(item.notebook for item in saved))
    listed = ''.join(f'    {name}\n' for name in notebooks) or '    none\n'
    return ('"""Generated by `make save`, not to be edited.\n\n'
            f'What these notebooks mark #@save:\n{listed}"""\n\n'
            + (f'{imports}\n\n' if imports else '')
            + f'{all_line(plain)}\n' + statements(saved))


# --- The command -----------------------------------------------------------


def target(backend, root=ROOT):
    return root / 'd2l_ext' / backend / 'saved.py'


def exports(root=ROOT):
    """{backend: text of its saved.py}."""
    return {backend: export(sorted((root / 'notebooks').glob(
        f'*_{backend}.py'))) for backend in BACKENDS}


def stale(root=ROOT):
    """The saved.py files that are not what the notebooks say."""
    return [path for backend, text in exports(root).items()
            if not (path := target(backend, root)).exists()
            or path.read_text() != text]


def main(arguments=None, root=ROOT):
    parser = argparse.ArgumentParser(
        prog='python -m d2l_ext.save_export',
        description='Export what the notebooks mark #@save.')
    parser.add_argument('--check', action='store_true',
                        help='write nothing, say whether it is current')
    options = parser.parse_args(arguments)
    try:
        outdated, texts = stale(root), exports(root)
    except SaveError as error:
        print(error, file=sys.stderr)
        return 1
    for path in outdated:
        name = path.relative_to(root)
        if options.check:
            print(f'{name} is not current: run `make save`')
            continue
        with atomic_path(path) as partial:
            Path(partial).write_text(texts[path.parent.name])
        print(f'{name} written')
    if not outdated:
        print('saved.py is current in both backends')
    return int(options.check and bool(outdated))


if __name__ == '__main__':
    sys.exit(main())
