"""What a cell prints is held to its output block, and nothing slips by."""

import re
from fractions import Fraction

import nbformat.v4 as v4
import pytest
from hypothesis import given
from hypothesis import strategies as st

from d2l_ext import output_blocks as ob

RUN = ('small', 'timemachine', 'smollm2')


def printing(*texts, stream='stdout', count=1):
    cell = v4.new_code_cell('run()', execution_count=count)
    cell.outputs = [v4.new_output('stream', name=stream, text=text)
                    for text in texts]
    return cell


def expected(*fences, tags=('expected',)):
    text = '\n'.join(f'```output {labels}\n{lines}\n```'
                     for labels, lines in fences)
    return v4.new_markdown_cell(text, metadata={'tags': list(tags)})


def whys(*cells):
    return [fault.why for fault in ob.check(cells, RUN).faults]


def why(block, printed):
    """The faults of one printed text under one block for every run."""
    return whys(printing(printed + '\n'), expected(('', block)))


@pytest.mark.parametrize('written, printed', [
    ('H_kv=8: 262144 parameters', 'H_kv=8: 262144 parameters'),
    ('n= 1024: ~2450 ms', 'n=  1024:   17.5 ms'),
    ('loss 1.53±0.03', 'loss 1.56'),          # the bound itself is inside
    ('loss -1.5±0.25', 'loss -1.75'),
    ('diff = <1e-5', 'diff = 3.65e-07'),
    ('rate >0 and ~1,000 tokens/s', 'rate 0.5 and 54,992 tokens/s'),
    ('~55,000±', '1.5±'),
    ('[~1, ~2]', '[ 3, 4.5]'),
    ('run {profile}, {text}, {checkpoint}', 'run small, timemachine, smollm2'),
    ('took ~3.', 'took 4.'),
    ('a\n\nb', '\na\nb\n\n'),                 # blank lines do not count
    ('the ~…', 'the cat, 3 of <4'),           # what a trained model writes
    ('the ~…\n~…', 'the cat sat\n    on'),
    ('the\n~⋮\nend', 'the\ncat\nsat on\nend'),  # a line or more
    ('~⋮\n3', 'a\n2\n3'),
    ('~⋮', 'a'),
])
def test_holds(written, printed):
    assert why(written, printed) == []


@pytest.mark.parametrize('written, printed, message', [
    ('262144 parameters', '262145 parameters', '262145 is not 262144'),
    ('loss 1.53±0.02', 'loss 1.57', '1.57 is not 1.53±0.02'),
    ('diff <1e-5', 'diff 0.00001', '0.00001 is not <1e-5'),
    ('x >0, n 3', 'x 0, n 4', '0 is not >0; 4 is not 3'),
    ('1.5', '1.50', '1.50 is not 1.5'),
    ('loss 1.5', 'loss: 1.5', 'the text differs'),
    ('~1 ms', 'inf ms', 'inf is not ~1'),
    ('~1 ms', 'nan ms', 'nan was printed'),
    ('nan', 'nan', 'nan was printed'),
    ('x=~…', 'x=', 'the text differs'),
    ('the ~…', 'the', 'the text differs'),    # something has to be printed
    ('~…\n~…', 'one line', 'written, but not printed'),
    ('the ~…\n~…\nend', 'the cat\nsat\non\nend', 'printed, but not written'),
    ('a\n~⋮\n3', 'a\nb\n2\n4', '4 is not 3'),
    ('a\n~⋮', 'a', 'written, but not printed'),
    ('1', 'NaN', 'nan was printed'),
])
def test_refuses(written, printed, message):
    assert why(written, printed) == [message]


def test_a_word_with_nan_in_it_is_no_nan():
    assert why('banana', 'banana') == []


def test_one_missing_line_leaves_the_others_in_place():
    lines = [f'n={n}: cached {n * 3} MiB' for n in (512, 1024, 2048, 4096)]
    faults = ob.check([printing('\n'.join(lines[:1] + lines[2:]) + '\n'),
                       expected(('', '\n'.join(lines)))], RUN).faults
    assert [(f.why, f.written, f.printed) for f in faults] == [
        ('written, but not printed', lines[1], '')]


@pytest.mark.parametrize('printed', ['a cat', 'the loss is nan', ''])
def test_free_text_is_not_any_text(printed):
    """What stands before it must be there, and a nan never passes."""
    assert why('the ~…', printed)


@pytest.mark.parametrize('written, printed', [
    ('~…', '[figure]'), ('a\n~⋮\nb', 'a\nc\n[figure]\nb'),
    ('~⋮\n[figure]', 'a\n[figure]\n[figure]')])
def test_a_figure_is_no_text(written, printed):
    assert why(written, printed)


def test_free_text_counts_as_free():
    assert ob.line_counts('3 words: ~…') == ob.Counts(exact=1, free=1)


def test_one_extra_line_and_one_wrong_number_are_two_faults():
    faults = ob.check([printing('a 1\nwarming up\nb 3\n'),
                       expected(('', 'a 1\nb 2'))], RUN).faults
    assert [(f.why, f.printed) for f in faults] == [
        ('printed, but not written', 'warming up'), ('3 is not 2', 'b 3')]


def test_counts_say_how_firmly_numbers_are_held():
    block = 'gpt2: 12.0 KiB, 3 blocks\nloss 1.5±0.1 <2\n~10 ms\nwrong 7'
    report = ob.check([printing('gpt2: 12.0 KiB, 3 blocks\nloss 1.5 1\n'
                                '9 ms\nwrong 8\n'), expected(('', block))],
                      RUN)
    assert report.counts == ob.Counts(exact=2, bounded=2, free=1)
    assert str(report.counts) == '2 exact, 2 bounded, 1 free (~)'


# --- Which block ------------------------------------------------------------


def test_the_block_with_active_labels_holds():
    cell = expected(('full', '9'), ('small timemachine', '1'),
                    ('small sotu1898', '2'))
    assert whys(printing('1\n'), cell) == []
    assert whys(printing('9\n'), cell) == ['9 is not 1']


def test_printing_under_blocks_of_other_runs_only_is_a_fault():
    assert whys(printing('1\n'), expected(('full', '1'))) == [
        'no output block holds for this run (small, timemachine, smollm2)']


def test_blocks_may_stand_in_details_with_prose_between():
    cell = v4.new_markdown_cell(
        '<details><summary>Output</summary>\n\n```output small\n1\n```\n'
        'With a GPU:\n\n```output full\n2\n```\n</details>',
        metadata={'tags': ['expected']})
    assert whys(printing('1\n'), cell) == []


@pytest.mark.parametrize('cells, message', [
    ([printing('1\n')], 'printed, but no output block stands below'),
    ([printing(), expected(('', '1'))], 'written, but not printed'),
    ([printing(count=None)], 'the cell did not run'),
    ([v4.new_markdown_cell('# A'), expected(('', ''))],
     'an output block under no code cell'),
    ([expected(('', ''))], 'an output block under no code cell'),
    ([printing(), expected(('smal', ''))], "unknown label 'smal'"),
    ([printing(), expected(('small', ''), ('timemachine', ''))],
     'two output blocks hold for the same run'),
    ([printing(), expected(('full', ''), ('gpt2', ''))],
     'two output blocks hold for the same run'),   # though not for this one
    ([printing(), expected(('small full', ''))], 'no run has all'),
    ([printing(), expected(('', ''), tags=())],
     'in a cell not tagged `expected`'),
    ([printing(), v4.new_markdown_cell('1', metadata={'tags': ['expected']})],
     'without an output block'),
    ([printing(), v4.new_markdown_cell('```output\n', metadata={
        'tags': ['expected']})], 'not closed'),
    ([printing(), v4.new_markdown_cell('```Output\n```\n```output\n```',
                                       metadata={'tags': ['expected']})],
     "a fence 'Output'"),
    ([printing('careful\n', stream='stderr')], 'written to stderr'),
])
def test_each_misplaced_or_unheld_thing_is_one_fault(cells, message):
    found = whys(*cells)
    assert len(found) == 1 and message in found[0], found


def test_a_second_expected_cell_is_under_no_code_cell():
    assert whys(printing('1\n'), expected(('', '1')), expected(('', '1'))) == [
        'an output block under no code cell']


def test_a_fence_inside_another_fence_is_text():
    shown = v4.new_markdown_cell('````text\n```output\n1\n```\n# no\n````')
    assert whys(shown) == []
    assert ob.headings(shown.source) == []


# --- What counts as printed -------------------------------------------------


def test_a_stream_cut_anywhere_is_joined():
    assert whys(printing('loss 1.', '53\nn', '=2\n'),
                expected(('', 'loss 1.53\nn=2'))) == []


def test_stderr_fails_even_where_the_block_has_it_and_shows_its_text():
    cell = printing('oh\n', stream='stderr')
    faults = ob.check([cell, expected(('', '[stderr] oh'))], RUN).faults
    assert [f.why for f in faults] == ['written, but not printed',
                                       'written to stderr']
    assert faults[1].printed == '[stderr] oh'


def test_figures_and_last_values_are_printed_lines():
    cell = printing('a')
    cell.outputs += [
        v4.new_output('display_data', {'image/png': '', 'text/plain': 'F'}),
        v4.new_output('execute_result', {'text/plain': '(2, 3)'})]
    assert whys(cell, expected(('', 'a\n[figure]\n(2, ~3)'))) == []


def test_an_error_is_a_printed_line_only_where_it_is_announced():
    def raising(*tags):
        cell = printing()
        cell.metadata['tags'] = list(tags)
        cell.outputs = [v4.new_output('error', ename='ValueError',
                                      evalue='too long', traceback=[])]
        return cell

    block = expected(('', 'ValueError: too long'))
    assert whys(raising('raises-exception'), block) == []
    assert whys(raising(), block) == ['the cell raised']
    quiet = printing()
    quiet.metadata['tags'] = ['raises-exception']
    assert whys(quiet) == ['tagged `raises-exception`, but it did not']


def test_a_fault_names_heading_cell_written_and_printed():
    heading = v4.new_markdown_cell('# Cache\n\ntext\n\n## Latency')
    fault, = ob.check([heading, printing('n 2\n'), expected(('', 'n 1'))],
                      RUN).faults
    assert str(fault) == ('Latency (cell 1): 2 is not 1\n'
                          '    written: n 1\n    printed: n 2')


def test_masking_hides_numbers_and_their_bounds_only():
    assert (ob.masked('gpt2: loss 1.5±0.1, <1e-5 of 1,024 at ~-3 ms')
            == ob.masked('gpt2: loss ~7, >2 of 5 at 4±1 ms')
            == 'gpt2: loss #, # of # at # ms')


# --- Laws -------------------------------------------------------------------

literal = st.text(st.characters(blacklist_characters='~<>±',
                                blacklist_categories=('Cs',)))
number = st.decimals(-10**9, 10**9, allow_nan=False, places=4)


@given(literal)
def test_any_text_without_slots_and_nan_matches_itself(text):
    if not ob.NAN.search(text):
        assert ob.line_fault(text, text) is None


@given(literal, number, number, st.decimals(0, 10**6, places=4))
def test_a_slot_holds_exactly_what_it_says(text, x, limit, tolerance):
    if ob.NAN.search(text) or re.search(r'[\d.,eE+-]\s*$', text):
        return
    exact = Fraction(x), Fraction(limit), Fraction(tolerance)
    for slot, holds in [
            (f'~{limit}', True), (f'<{limit}', exact[0] < exact[1]),
            (f'>{limit}', exact[0] > exact[1]),
            (f'{limit}±{tolerance}',
             abs(exact[0] - exact[1]) <= exact[2])]:
        fault = ob.line_fault(f'{text} {slot} ms', f'{text} {x} ms')
        assert (fault is None) == holds, (slot, x, fault)
