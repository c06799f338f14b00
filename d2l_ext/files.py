"""Writing files so that nobody ever sees half of one."""

import contextlib
import os
import tempfile
from pathlib import Path


def umask():
    """The permission bits that new files do not get."""
    bits = os.umask(0)
    os.umask(bits)
    return bits


def check_file(filename):
    """FileNotFoundError, with the name, unless this is a file."""
    if not Path(filename).is_file():
        raise FileNotFoundError(f'{filename}: no such file')


@contextlib.contextmanager
def naming(file):
    """A ValueError says which file is at fault."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f'{file}: {error}') from error


@contextlib.contextmanager
def atomic_path(filename):
    """A temporary name beside `filename`, moved onto it if all went well.

    On an error the temporary file is removed and `filename` stays as it was.
    """
    target = Path(filename)
    if not target.parent.is_dir():
        raise FileNotFoundError(f'{target}: there is no folder '
                                f'{target.parent}')
    handle, partial = tempfile.mkstemp(dir=target.parent,
                                       prefix=f'.{target.name}.')
    os.close(handle)
    try:
        yield partial
        os.chmod(partial, 0o666 & ~umask())  # mkstemp leaves it to its owner
        os.replace(partial, target)
    finally:
        Path(partial).unlink(missing_ok=True)
