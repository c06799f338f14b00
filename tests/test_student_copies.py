"""Nothing that a student did in work/ is ever lost."""

import nbformat
import pytest

from d2l_ext import student_copies

SOURCE = '''# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Cost of a step
# ![a step](img/step.svg)

# %%
print(1)

# %% [markdown] tags=["expected"]
# ```output
# 1
# ```
'''


@pytest.fixture
def project(tmp_path):
    (tmp_path / 'notebooks' / 'img').mkdir(parents=True)
    (tmp_path / 'notebooks' / 'img' / 'step.svg').write_text('<svg/>')
    (tmp_path / 'notebooks' / '01_a.py').write_text(SOURCE)
    (tmp_path / 'notebooks' / '02_b.py').write_text(SOURCE)
    return tmp_path


@pytest.fixture
def lab(project, capsys):
    """Runs the command; returns the lines it says before the last one."""
    def run(*arguments):
        assert student_copies.main(list(arguments), project) == 0
        return capsys.readouterr().out.splitlines()[:-1]
    run()
    capsys.readouterr()
    return run


def newer(project, name='01_a'):
    path = project / 'notebooks' / f'{name}.py'
    path.write_text(path.read_text().replace('print(1)', 'print(2)'))


def read(path):
    return nbformat.read(path, as_version=4)


def change(path, what):
    notebook = read(path)
    what(notebook)
    nbformat.write(notebook, path)


def stamps(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob('*')}


def test_copies_are_plain_notebooks_with_their_drawings(project, lab):
    copy = read(project / 'work' / '01_a.ipynb')
    assert 'jupytext' not in copy.metadata
    assert copy.metadata.kernelspec.name == 'python3'
    assert copy.cells[-1].metadata.tags == ['expected']  # stays visible
    assert (project / 'work' / 'img' / 'step.svg').read_text() == '<svg/>'


def test_copies_come_without_solutions(project, lab):
    folder = project / 'notebooks' / 'solutions'
    folder.mkdir()
    (folder / '01_a.py').write_text(SOURCE)
    assert lab() == []
    assert not list((project / 'work').rglob('*solution*'))


def test_verdicts_and_answers_stay_a_student_s(project, lab):
    """An answer in a scratch cell is a change like any other."""
    source = project / 'notebooks' / '01_a.py'
    source.write_text(SOURCE + '\n# %% exercise="cost"\ncost = ...\n')
    assert lab() == ['work/01_a.ipynb: updated']
    copy = project / 'work' / '01_a.ipynb'
    assert read(copy).cells[-1].metadata.exercise == 'cost'
    verdicts = project / 'work' / '.d2l_exercises.json'
    verdicts.write_text('{}')

    def answer(notebook):
        notebook.cells[-1].source = 'cost = )('  # not even Python
    change(copy, answer)
    mine = copy.read_bytes()
    newer(project)
    assert 'kept, yours' in lab()[0]
    assert copy.read_bytes() == mine
    lab('--fresh', '01_a')
    assert verdicts.read_text() == '{}'
    old, = (project / 'work').glob('01_a-*.ipynb')
    assert old.read_bytes() == mine


def test_a_second_run_writes_nothing(project, lab):
    before = stamps(project / 'work')
    assert lab() == []
    assert stamps(project / 'work') == before


def test_an_untouched_copy_follows_its_source(project, lab):
    newer(project)
    assert lab() == ['work/01_a.ipynb: updated']
    copy = read(project / 'work' / '01_a.ipynb')
    assert copy.cells[1].source == 'print(2)'
    assert lab() == []


def test_a_saved_but_unchanged_copy_still_follows(project, lab):
    def save_like_jupyter(notebook):
        notebook.metadata['language_info'] = {'name': 'python'}
        for number, cell in enumerate(notebook.cells):
            cell['id'] = f'new-{number}'
            cell.metadata['collapsed'] = True
    change(project / 'work' / '01_a.ipynb', save_like_jupyter)
    newer(project)
    assert lab() == ['work/01_a.ipynb: updated']


def edit(notebook):
    notebook.cells[1].source = 'print(3)'


def add(notebook):
    notebook.cells.append(nbformat.v4.new_code_cell(''))


def remove(notebook):
    del notebook.cells[0]


def run_a_silent_cell(notebook):
    notebook.cells[1].execution_count = 1


def clear_the_count(notebook):
    notebook.cells[1].outputs = [nbformat.v4.new_output(
        'stream', text='1\n')]


def forget_its_source(notebook):
    del notebook.metadata['d2l_ext']


@pytest.mark.parametrize('what', [edit, add, remove, run_a_silent_cell,
                                  clear_the_count,
                                  forget_its_source])
def test_a_touched_copy_is_kept_and_a_newer_source_is_said(project, lab,
                                                           what):
    copy = project / 'work' / '01_a.ipynb'
    change(copy, what)
    mine = copy.read_bytes()
    if what is not forget_its_source:
        assert lab() == []
    newer(project)
    assert lab() == ['work/01_a.ipynb: kept, yours; the source is newer: '
                     'make fresh NB=01_a']
    assert copy.read_bytes() == mine


def test_what_is_no_notebook_is_kept_and_reported(project, lab):
    for text in ('{"cells": [', '[]', ''):
        copy = project / 'work' / '01_a.ipynb'
        copy.write_text(text)
        line, = lab()
        assert 'kept, but it is no readable notebook' in line
        assert copy.read_text() == text


def test_fresh_sets_aside_and_never_overwrites_what_was(project, lab):
    work = project / 'work'
    for number in (1, 2, 3):
        (work / '01_a.ipynb').write_text(f'mine {number}')
        line, = lab('--fresh', '01_a')
        assert line.startswith('work/01_a.ipynb: written, the old one is ')
    olds = [path.read_text() for path in sorted(
        work.glob('01_a-*.ipynb'), key=lambda path: len(path.name))]
    assert sorted(olds) == ['mine 1', 'mine 2', 'mine 3']
    assert read(work / '01_a.ipynb').cells[1].source == 'print(1)'


def test_fresh_of_an_unknown_name_lists_the_names(project, lab, capsys):
    with pytest.raises(SystemExit):
        lab('--fresh', '03_c')
    assert 'there are: 01_a, 02_b' in capsys.readouterr().err


def test_a_source_that_cannot_be_read_moves_nothing(project, lab,
                                                    monkeypatch):
    def broken(path):
        raise ValueError('broken')
    monkeypatch.setattr(student_copies.jupytext, 'read', broken)
    before = stamps(project / 'work')
    with pytest.raises(ValueError, match='broken'):
        lab('--fresh', '01_a')
    assert stamps(project / 'work') == before


def test_a_deleted_copy_comes_back(project, lab):
    (project / 'work' / '02_b.ipynb').unlink()
    assert lab() == ['work/02_b.ipynb: written']


def test_drawings_follow_unless_a_student_changed_them(project, lab):
    source = project / 'notebooks' / 'img' / 'step.svg'
    copy = project / 'work' / 'img' / 'step.svg'
    source.write_text('<svg>2</svg>')
    assert lab() == ['work/img/step.svg: updated']
    copy.write_text('<svg>mine</svg>')
    assert lab() == ['work/img/step.svg: kept, yours']
    source.write_text('<svg>3</svg>')
    lab()
    assert copy.read_text() == '<svg>mine</svg>'
    (project / 'work' / student_copies.MANIFEST).unlink()
    lab()
    assert copy.read_text() == '<svg>mine</svg>'
