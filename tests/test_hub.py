"""The data hub against a real server, a real pip and a real file system."""

import contextlib
import hashlib
import http.server
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from pathlib import Path

import pytest

from d2l_ext import fetch_data, hub

BODY = b'It was a bright cold day in the laboratory.\n' * 199
OTHER = b'something else'
ROOT = Path(hub.__file__).resolve().parent.parent


def sha1(data):
    return 'sha1:' + hashlib.sha1(data).hexdigest()


class Site:
    """A server on a loopback port: path -> bytes or function(request)."""

    def __init__(self):
        self.pages, self.asked = {}, []
        self.closing = threading.Event()
        site = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                site.asked.append(self.path)
                page = site.pages.get(self.path.partition('?')[0])
                if page is None:
                    self.send_error(404)
                elif callable(page):
                    with contextlib.suppress(ConnectionError):
                        page(self)
                else:
                    self.start(len(page))
                    self.wfile.write(page)

            def start(self, length):
                self.send_response(200)
                self.send_header('Content-Length', str(length))
                if self.path.endswith('/'):  # pip reads no other index
                    self.send_header('Content-Type', 'text/html')
                self.end_headers()

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(('127.0.0.1', 0),
                                                      Handler)
        self.url = f'http://127.0.0.1:{self.server.server_port}'
        threading.Thread(target=self.server.serve_forever, args=(0.02,),
                         daemon=True).start()

    def close(self):
        self.closing.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def site():
    site = Site()
    yield site
    site.close()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty data/, and nothing of this machine's settings."""
    for name in list(os.environ):
        if name.startswith(('PIP_', 'D2L_')) or 'proxy' in name.lower():
            monkeypatch.delenv(name)
    monkeypatch.setenv('PIP_CONFIG_FILE', os.devnull)
    monkeypatch.setenv('PIP_NO_CACHE_DIR', '1')
    monkeypatch.setenv('PIP_INDEX_URL', closed_url() + '/simple')
    data = tmp_path / 'data'
    monkeypatch.setattr(hub, 'data_folder', lambda: str(data))
    return data


@pytest.fixture
def offer(site, monkeypatch):
    """Enter an asset called `name` in the table, at URLs of the server."""
    def offer(*paths, name='tale', filename='tale.txt', **rest):
        urls = tuple(p if '://' in p else site.url + p for p in paths)
        asset = hub.Asset(filename, sha1(BODY), urls, **rest)
        monkeypatch.setitem(hub.ASSETS, name, asset)
        return asset
    return offer


@pytest.fixture
def wheel(site, tmp_path, monkeypatch):
    """A package index with one wheel; gives hub.Wheel for a member of it."""
    path = tmp_path / 'd2l_tale-1.0-py3-none-any.whl'
    info = 'd2l_tale-1.0.dist-info/'
    with zipfile.ZipFile(path, 'w') as archive:
        archive.writestr('d2l_tale/tale.txt', BODY)
        archive.writestr(info + 'METADATA', 'Metadata-Version: 2.1\n'
                         'Name: d2l-tale\nVersion: 1.0\n'
                         'Requires-Dist: not-to-be-had\n')
        archive.writestr(info + 'WHEEL', 'Wheel-Version: 1.0\n'
                         'Root-Is-Purelib: true\nTag: py3-none-any\n')
        archive.writestr(info + 'RECORD', '')
    data = path.read_bytes()
    site.pages['/files/' + path.name] = data
    site.pages['/simple/d2l-tale/'] = (
        f'<a href="/files/{path.name}">{path.name}</a>'.encode())
    monkeypatch.setenv('PIP_INDEX_URL', site.url + '/simple')

    def wheel(member='d2l_tale/tale.txt', sha256=None):
        sha256 = sha256 or hashlib.sha256(data).hexdigest()
        return hub.Wheel('d2l-tale', '1.0', sha256, member)
    return wheel


def closed_url():
    """A URL at which nobody listens."""
    with http.server.HTTPServer(('127.0.0.1', 0), None) as server:
        return f'http://127.0.0.1:{server.server_port}'


def names(folder):
    """What a folder holds, but for the lock files, which stay."""
    if not folder.is_dir():
        return []
    return sorted(p.name for p in folder.iterdir() if p.suffix != '.lock')


def project(tmp_path, before='', data=None):
    """Source for `python -c` that fetches in a process of its own."""
    return ('import sys; from d2l_ext import hub\n'
            f'hub.data_folder = lambda: {str(data or tmp_path / "data")!r}\n'
            f'hub.ASSETS["tale"] = {hub.ASSETS["tale"]!r}\n'
            .replace('Asset(', 'hub.Asset(').replace('Wheel(', 'hub.Wheel(')
            + before + '\nprint(hub.fetch("tale"))')


def start(source):
    return subprocess.Popen([sys.executable, '-c', source], cwd=ROOT,
                            text=True, stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@contextlib.contextmanager
def ordinary_user():
    """Permissions do not bind root, so lay root's rights down for a while."""
    root = hasattr(os, 'geteuid') and os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.fixture
def locked_folder():
    """A folder anyone can read and nobody but root can write."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o555)
        yield Path(name)
        os.chmod(name, 0o755)


# The table


def test_the_table_is_sound():
    """File names are distinct, hashes are whole, all assets have a source."""
    assets = hub.ASSETS.values()
    files = [n for a in assets for n in (a.filename, *a.aliases)]
    assert len(files) == len(set(files))
    for asset in assets:
        algorithm, digest = asset.hash.split(':')
        assert len(digest) == {'sha1': 40, 'sha256': 64}[algorithm]
        assert int(digest, 16) and (asset.urls or asset.wheel)
    url, digest = hub.DATA_HUB['time_machine']
    assert (url, digest) == hub.DATA_HUB['timemachine']
    assert url == hub.DATA_URL + 'timemachine.txt' and len(digest) == 40


def test_the_data_page_and_the_table_agree():
    """Each asset's line on the page holds its names, hash, size, source."""
    lines = (ROOT / 'data/README.md').read_text().splitlines()
    rows = {line.split('`')[1]: line for line in lines
            if line.startswith('| `')}
    for name, asset in hub.ASSETS.items():
        said = [asset.filename, asset.hash, *asset.urls, *asset.aliases]
        if asset.size:
            said.append(f' {asset.size:,} ')
        if asset.wheel:
            pin = f'{asset.wheel.package}=={asset.wheel.version}'
            said += [pin, asset.wheel.member]
            assert asset.wheel.sha256 in rows[pin]
        assert [s for s in said if s not in rows[name]] == []


@pytest.mark.parametrize('member', ['../tale.txt', 'a/../../tale.txt',
                                    '/etc/tale.txt', 'a\\..\\tale.txt'])
def test_a_member_that_leads_out_of_the_wheel_is_refused(member):
    """Such a wheel cannot even be named, so nothing is downloaded."""
    with pytest.raises(ValueError, match='without ..'):
        hub.Wheel('d2l-tale', '1.0', '0' * 64, member)


# Sources


def test_a_good_download_is_kept_and_silent(site, folder, offer, capfd):
    """One request gives the file; the second fetch asks nobody."""
    offer('/tale.txt')
    site.pages['/tale.txt'] = BODY
    assert hub.find('tale') is None
    paths = [hub.fetch('tale'), hub.fetch('tale'), hub.find('tale')]
    assert paths == [str(folder / 'tale.txt')] * 3
    assert (folder / 'tale.txt').read_bytes() == BODY
    assert names(folder) == ['tale.txt'] and len(site.asked) == 1
    assert capfd.readouterr() == ('', '')


def test_a_fetched_file_is_as_readable_as_any(site, folder, offer):
    """A new file has the permissions the reader's umask gives."""
    offer('/tale.txt')
    site.pages['/tale.txt'] = BODY
    hub.fetch('tale')
    (folder / 'new').touch()
    assert ((folder / 'tale.txt').stat().st_mode
            == (folder / 'new').stat().st_mode)


def short(request):
    request.start(len(BODY) + 97)
    request.wfile.write(BODY)


def never(request):
    request.server.closing.wait(20)


FAULTS = {
    '/wrong.txt': f'wrong hash: expected {sha1(BODY)}, found {sha1(OTHER)}',
    '/short.txt': 'the connection broke off',
    '/absent.txt': 'HTTP 404',
    '/slow.txt': 'no answer within',
}


@pytest.mark.parametrize('path', FAULTS)
def test_a_bad_source_leaves_nothing_and_the_next_is_tried(
        site, folder, offer, monkeypatch, path):
    """A fault on one source is named if all fail, else passed over."""
    monkeypatch.setattr(hub, 'TIMEOUT', (0.3, 0.3))
    site.server.closing = site.closing
    site.pages.update({'/wrong.txt': OTHER, '/short.txt': short,
                       '/slow.txt': never, '/tale.txt': BODY})
    offer(path)
    began = time.monotonic()
    with pytest.raises(FileNotFoundError) as error:
        hub.fetch('tale')
    assert time.monotonic() - began < 5
    assert f'{site.url}{path}: {FAULTS[path]}' in str(error.value)
    assert names(folder) == []
    offer(path, '/tale.txt')
    assert Path(hub.fetch('tale')).read_bytes() == BODY


def test_the_final_error_lists_each_place(folder, offer, tmp_path, site,
                                          monkeypatch):
    """Folders, URLs, package: each with its reason, then what to do."""
    shared = tmp_path / 'class'
    shared.mkdir()
    monkeypatch.setenv('D2L_DATA', str(shared))
    refused, package = closed_url(), hub.Wheel('d2l-tale', '1.0', '0' * 64,
                                               'd2l_tale/tale.txt')
    offer(refused + '/tale.txt', '/absent.txt', wheel=package)
    with pytest.raises(OSError) as error:
        hub.fetch('tale')
    text = str(error.value)
    for part in [f'D2L_DATA: not in {shared}', f'{folder}: not there',
                 f'{refused}/tale.txt: no connection: Connection refused',
                 f'{site.url}/absent.txt: HTTP 404',
                 'package index, d2l-tale==1.0: the index does not answer',
                 f'put tale.txt ({sha1(BODY)}) into {folder}']:
        assert part in text, text
    assert names(folder) == []


def test_a_file_comes_out_of_a_wheel(site, folder, offer, wheel, capfd):
    """Only the one member is kept, and no dependency is asked for."""
    offer('/absent.txt', wheel=wheel())
    assert Path(hub.fetch('tale')).read_bytes() == BODY
    assert names(folder) == ['tale.txt']
    assert not [path for path in site.asked if 'not-to-be-had' in path]
    assert capfd.readouterr() == ('', '')


def test_a_wrong_wheel_is_refused(folder, offer, wheel):
    """The error names the expected and the found hash of the wheel."""
    good = wheel().sha256
    offer(wheel=wheel(sha256='0' * 64))
    with pytest.raises(FileNotFoundError) as error:
        hub.fetch('tale')
    assert f'sha256:{"0" * 64}, found sha256:{good}' in str(error.value)
    assert names(folder) == []


def test_a_wheel_without_the_member_is_an_error(folder, offer, wheel):
    """The error names the member that is missing."""
    offer(wheel=wheel('d2l_tale/other.txt'))
    with pytest.raises(FileNotFoundError, match='no d2l_tale/other.txt in'):
        hub.fetch('tale')
    assert names(folder) == []


def test_a_python_without_pip_says_so(offer, wheel, tmp_path, monkeypatch):
    """The error gives the command that installs pip."""
    bare = tmp_path / 'bare'
    subprocess.run([sys.executable, '-m', 'venv', '--without-pip', bare],
                   check=True)
    python = next(bare.glob('[bS]*/python*'))
    monkeypatch.setattr(sys, 'executable', str(python))
    offer(wheel=wheel())
    with pytest.raises(FileNotFoundError, match='-m ensurepip'):
        hub.fetch('tale')


# Folders


def test_d2l_data_comes_first_in_its_order(site, folder, offer, tmp_path,
                                           monkeypatch):
    """A copy in the first folder that has one wins over data/ and network."""
    offer('/tale.txt', aliases=('book.txt',))
    first, second, empty = (tmp_path / n for n in ('a', 'b', 'empty'))
    for path in (first, second, empty, folder):
        path.mkdir()
    for path in (first / 'book.txt', second / 'tale.txt',
                 folder / 'tale.txt'):
        path.write_bytes(BODY)
    for order, want in [((empty, first, second), first / 'book.txt'),
                        ((second, first), second / 'tale.txt'),
                        ((empty,), folder / 'tale.txt')]:
        monkeypatch.setenv('D2L_DATA', os.pathsep.join(map(str, order)))
        assert hub.find('tale') == hub.fetch('tale') == str(want)
    assert names(empty) == [] and site.asked == []


def test_a_missing_class_folder_is_named(offer, tmp_path, monkeypatch):
    """A folder that is not there is an error, not a reason to go on."""
    offer('/tale.txt')
    monkeypatch.setenv('D2L_DATA', str(tmp_path / 'nowhere'))
    with pytest.raises(ValueError, match=str(tmp_path / 'nowhere')):
        hub.fetch('tale')


def test_a_wrong_file_in_a_class_folder_stays(offer, tmp_path, monkeypatch):
    """The error names it and both hashes; the file is untouched."""
    offer('/tale.txt')
    shared = tmp_path / 'class'
    shared.mkdir()
    (shared / 'tale.txt').write_bytes(OTHER)
    monkeypatch.setenv('D2L_DATA', str(shared))
    with pytest.raises(ValueError) as error:
        hub.find('tale')
    for part in (str(shared / 'tale.txt'), sha1(BODY), sha1(OTHER)):
        assert part in str(error.value)
    assert [p.name for p in shared.iterdir()] == ['tale.txt']
    assert (shared / 'tale.txt').read_bytes() == OTHER


def test_another_file_under_an_alias_is_passed_over(site, folder, offer):
    """model.safetensors may be any model, so it is no error, and stays."""
    offer('/tale.txt', aliases=('book.txt',))
    site.pages['/tale.txt'] = BODY
    folder.mkdir()
    (folder / 'book.txt').write_bytes(OTHER)
    assert hub.find('tale') is None
    assert hub.fetch('tale') == str(folder / 'tale.txt')
    assert (folder / 'book.txt').read_bytes() == OTHER


def test_a_changed_file_in_data_is_set_aside(site, folder, offer):
    """What a student changed is kept under a new name, each time anew."""
    offer('/tale.txt')
    site.pages['/tale.txt'] = BODY
    folder.mkdir()
    for changed, aside in [(b'mine', 'tale.txt.set-aside'),
                           (b'mine too', 'tale.txt.set-aside-2')]:
        (folder / 'tale.txt').write_bytes(changed)
        with pytest.raises(ValueError) as error:
            hub.fetch('tale')
        for part in (str(folder / 'tale.txt'), str(folder / aside),
                     sha1(BODY), sha1(changed)):
            assert part in str(error.value)
        assert (folder / aside).read_bytes() == changed
        assert Path(hub.fetch('tale')).read_bytes() == BODY


def test_a_big_file_that_changes_is_hashed_again(folder, offer, monkeypatch):
    """A remembered hash never outlives a change of the file."""
    monkeypatch.setattr(hub, 'BIG', 1)
    offer('/tale.txt')
    folder.mkdir()
    path = folder / 'tale.txt'
    path.write_bytes(BODY)
    os.utime(path, ns=(1, 1))
    assert hub.find('tale') == hub.find('tale') == str(path)
    path.write_bytes(BODY[:-1] + b'!')  # same size
    with pytest.raises(ValueError, match='wrong hash'):
        hub.find('tale')


def test_a_read_only_folder_with_the_file_will_do(offer, locked_folder,
                                                  monkeypatch, site):
    """A verified file needs no lock and no writing."""
    os.chmod(locked_folder, 0o755)
    (locked_folder / 'tale.txt').write_bytes(BODY)
    os.chmod(locked_folder, 0o555)
    monkeypatch.setattr(hub, 'data_folder', lambda: str(locked_folder))
    offer('/tale.txt')
    with ordinary_user():
        assert hub.fetch('tale') == str(locked_folder / 'tale.txt')
    assert os.listdir(locked_folder) == ['tale.txt'] and site.asked == []


@pytest.mark.parametrize('kind', ['read-only', 'a file'])
def test_an_unwritable_folder_is_named_before_a_request(
        offer, locked_folder, tmp_path, monkeypatch, site, kind):
    """The error names the folder and what to do; no server is asked."""
    path = locked_folder
    if kind == 'a file':
        path = tmp_path / 'plain'
        path.touch()
    monkeypatch.setattr(hub, 'data_folder', lambda: str(path))
    offer('/tale.txt')
    site.pages['/tale.txt'] = BODY
    with ordinary_user() if kind == 'read-only' else \
            contextlib.nullcontext(), pytest.raises(OSError) as error:
        hub.fetch('tale')
    assert f'cannot write in the folder {path}' in str(error.value)
    assert 'D2L_DATA' in str(error.value) and site.asked == []
    assert os.listdir(locked_folder) == []


def test_a_wrong_file_in_a_read_only_folder_is_named(offer, locked_folder,
                                                     monkeypatch):
    """If it cannot be set aside, the error says so beside the hashes."""
    os.chmod(locked_folder, 0o755)
    (locked_folder / 'tale.txt').write_bytes(OTHER)
    os.chmod(locked_folder, 0o555)
    monkeypatch.setattr(hub, 'data_folder', lambda: str(locked_folder))
    offer('/tale.txt')
    with ordinary_user(), pytest.raises(ValueError) as error:
        hub.fetch('tale')
    for part in (sha1(BODY), sha1(OTHER), 'could not be set aside'):
        assert part in str(error.value)


# Processes


@pytest.mark.parametrize('source', ['url', 'wheel'])
def test_a_full_disk_is_named(site, folder, offer, wheel, tmp_path, source):
    """No room left: the folder is named, nothing half-written stays."""
    pytest.importorskip('resource')
    if source == 'url':
        offer('/tale.txt', '/again.txt')
    else:
        offer(wheel=wheel())
    site.pages['/tale.txt'] = BODY
    limit = ('import resource\n'
             'resource.setrlimit(resource.RLIMIT_FSIZE, (997, 997))')
    child = start(project(tmp_path, limit))
    _, said = child.communicate(timeout=20)
    assert child.returncode == 1
    assert f'OSError: no space for tale.txt in the folder {folder}' in said
    assert names(folder) == [] and '/again.txt' not in site.asked


@pytest.mark.skipif(os.name == 'nt', reason='Windows has no SIGKILL')
def test_a_killed_fetch_leaves_no_file_and_no_litter(site, folder, offer,
                                                     tmp_path):
    """Killed half-way: no final name, and the next fetch cleans up."""
    half = threading.Event()

    def slowly(request):
        request.start(len(BODY))
        request.wfile.write(BODY[:len(BODY) // 2])
        half.set()
        site.closing.wait(20)

    offer('/tale.txt')
    site.pages['/tale.txt'] = slowly
    child = start(project(tmp_path))
    assert half.wait(20)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    [litter] = names(folder)
    assert litter.startswith('.tale.txt.part-')
    site.pages['/tale.txt'] = BODY
    assert Path(hub.fetch('tale')).read_bytes() == BODY
    assert names(folder) == ['tale.txt']


def test_two_processes_at_once_download_once(site, folder, offer, tmp_path):
    """Both get the right file, the server sends one body."""
    def slowly(request):
        time.sleep(0.5)
        request.start(len(BODY))
        request.wfile.write(BODY)

    offer('/tale.txt')
    site.pages['/tale.txt'] = slowly
    wait = 'print("ready", flush=True); sys.stdin.readline()'
    children = [start(project(tmp_path, wait)) for _ in range(2)]
    for child in children:
        assert child.stdout.readline() == 'ready\n'
    for child in children:
        child.stdin.write('go\n')
        child.stdin.flush()
    said = [child.communicate(timeout=20) for child in children]
    assert said == [(f'{folder / "tale.txt"}\n', '')] * 2
    assert site.asked == ['/tale.txt']
    assert names(folder) == ['tale.txt']


# The book's download


def test_download_takes_a_hub_name_or_a_url(site, folder, offer, tmp_path,
                                            monkeypatch):
    """A name, its URL and the default folder give one verified file."""
    site.pages['/tale.txt'] = site.pages['/b/free.txt'] = BODY
    url = site.url + '/tale.txt'
    monkeypatch.setitem(hub.DATA_HUB, 'tale', (url, sha1(BODY)[5:]))
    monkeypatch.chdir(tmp_path)
    assert hub.download('tale') == str(folder / 'tale.txt')
    assert hub.download(url) == str(folder / 'tale.txt')
    assert len(site.asked) == 1
    name = hub.download(site.url + '/b/free.txt?v=3', 'mine')
    assert Path(name) == Path('mine/free.txt')
    Path(name).write_bytes(OTHER)  # no hash is known, so it is as it is
    assert hub.download(site.url + '/b/free.txt', 'mine') == name
    with pytest.raises(ValueError, match='set aside'):
        hub.download(site.url + '/b/free.txt', 'mine', sha1(BODY)[5:])


def test_download_verifies_by_a_known_url(site, folder, monkeypatch):
    """A URL that the hub knows is verified though no hash is given."""
    site.pages['/tale.txt'] = OTHER
    url = site.url + '/tale.txt'
    monkeypatch.setitem(hub.DATA_HUB, 'tale', (url, sha1(BODY)[5:]))
    with pytest.raises(FileNotFoundError, match=sha1(OTHER)):
        hub.download(url)
    assert names(folder) == []


def test_download_finds_an_asset_under_each_of_its_names(site, folder, offer):
    """A copy that `fetch` placed is found by the URL's own file name."""
    asset = offer('/model.bin', filename='our-model.bin',
                  aliases=('model.bin',))
    site.pages['/model.bin'] = BODY
    path = hub.fetch('tale')
    assert hub.download(asset.urls[0], sha1_hash=sha1(BODY)[5:]) == path
    assert len(site.asked) == 1


@pytest.mark.parametrize('name', ['nonsense', 'ftp://a/b.txt', 'tale.txt'])
def test_download_refuses_what_it_does_not_know(name):
    """The error lists the names of the hub."""
    with pytest.raises(ValueError, match='time_machine, timemachine'):
        hub.download(name)


def test_download_needs_a_file_name():
    """A URL that ends in a slash names no file."""
    with pytest.raises(ValueError, match='ends in a file name'):
        hub.download('http://127.0.0.1/folder/')


# The command


def test_the_command_names_the_text_of_the_run(site, folder, offer, capsys,
                                               monkeypatch):
    """It says which text, which files, and what they stand in for."""
    offer('/absent.txt', name='timemachine', filename='timemachine.txt')
    for name in ('sotu1898', 'sotu1899', 'smollm2'):
        offer('/tale.txt', name=name, filename=f'{name}.txt')
    site.pages['/tale.txt'] = BODY
    assert fetch_data.main([]) == 0
    out, err = capsys.readouterr()
    assert err == '' and max(map(len, out.splitlines()[1:4])) < 80
    for part in ('text sotu1898', str(folder / 'sotu1898.txt'),
                 str(folder / 'sotu1899.txt'),
                 'It stands in for The Time Machine',
                 f'put\ntimemachine.txt ({sha1(BODY)})'):
        assert part in out
    (folder / 'timemachine.txt').write_bytes(BODY)
    assert fetch_data.main([]) == 0
    out, _ = capsys.readouterr()
    assert out == (f'text timemachine: The Time Machine, from '
                   f'{folder / "timemachine.txt"}\n'
                   f'checkpoint smollm2: {folder / "smollm2.txt"}\n')
    monkeypatch.setenv('D2L_TEXT', 'sotu1898')
    assert fetch_data.main([]) == 0
    assert 'as D2L_TEXT asks' in capsys.readouterr().out


def test_the_command_goes_on_without_a_checkpoint(site, folder, offer,
                                                  capsys):
    """The first lessons need none: it says what is missing, and to whom."""
    offer('/tale.txt', name='timemachine', filename='timemachine.txt')
    site.pages['/tale.txt'] = BODY
    offer('/absent.gguf', name='smollm2', filename='smollm2.gguf')
    assert fetch_data.main([]) == 0
    out, _ = capsys.readouterr()
    assert 'checkpoint smollm2: smollm2.gguf' in out
    assert out.endswith('Lessons 05 to 07 need it, the others do not.\n')


@pytest.fixture
def copied(tmp_path):
    """Run Python on a copy of the hub, so that no real data/ is touched."""
    package = tmp_path / 'copy' / 'd2l_ext'
    package.mkdir(parents=True)
    for name in ('__init__', 'hub', 'runs', 'fetch_data'):
        shutil.copy(ROOT / 'd2l_ext' / f'{name}.py', package)

    def run(*args):
        done = subprocess.run(
            [sys.executable, *args], text=True, capture_output=True,
            cwd=tmp_path, timeout=20,
            env={**os.environ, 'PYTHONPATH': str(package.parent)})
        return done.returncode, done.stdout, done.stderr
    run.root = package.parent
    return run


def test_the_command_fails_in_plain_words(copied):
    """As a program: exit code 1, the message on stderr, no traceback."""
    code, out, err = copied('-m', 'd2l_ext.fetch_data', 'nonsense')
    assert (code, out) == (1, '') and err.count('\n') == 1
    assert 'timemachine, sotu1898' in err and 'Traceback' not in err


def test_the_command_lists_what_is_here(copied):
    """One line for each asset; a wrong file is named and makes it fail."""
    list_all = ('-m', 'd2l_ext.fetch_data', '--list')
    (copied.root / 'pyproject.toml').touch()
    code, out, err = copied(*list_all)
    assert (code, err) == (0, '') and 'not on this machine' in out
    assert [line.split()[0] for line in out.splitlines()] == list(hub.ASSETS)
    (copied.root / 'data').mkdir()
    (copied.root / 'data/timemachine.txt').write_bytes(OTHER)
    code, out, err = copied(*list_all)
    assert (code, err) == (1, '') and sha1(OTHER) in out
    assert len(out.splitlines()) == len(hub.ASSETS)


def test_data_lies_beside_the_package_wherever_it_is(copied, tmp_path):
    """data/ next to pyproject.toml, else a cache; never the work folder."""
    ask = ('-c', 'from d2l_ext import hub; print(hub.data_folder())')
    code, cache, _ = copied(*ask)
    assert code == 0 and 'd2l_ext' in cache and str(tmp_path) not in cache
    (copied.root / 'pyproject.toml').touch()
    assert copied(*ask) == (0, f'{copied.root / "data"}\n', '')
