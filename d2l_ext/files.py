"""Writing files so that nobody ever sees half of one."""

import contextlib
import os
import tempfile
from pathlib import Path


@contextlib.contextmanager
def atomic_path(filename):
    """A temporary name beside `filename`, moved onto it if all went well.

    On an error the temporary file is removed and `filename` stays as it was.
    """
    target = Path(filename)
    handle, partial = tempfile.mkstemp(dir=target.parent,
                                       prefix=f'.{target.name}.')
    os.close(handle)
    try:
        yield partial
        os.replace(partial, target)
    finally:
        Path(partial).unlink(missing_ok=True)
