"""Fixtures of the end-to-end tests. Each test has a daemon and a folder of its own unless it asks for the shared one."""
import pytest

import fh


def pytest_configure(config):
    config.addinivalue_line("markers", "plain_only: not under a sanitizer (times latency, or repeats what another test covers)")
    config.addinivalue_line("markers", "same_threads: not under ThreadSanitizer (the threads do what they do in another test; what is new is what "
                                       "one of them reads, computes or prints)")


@pytest.fixture
def folder():
    path = fh.short_folder()
    yield path
    fh.remove(path)


@pytest.fixture
def make_daemon(folder):
    """make_daemon() -> a started Daemon in the test's folder; make_daemon("fhd-crash") for the one with crash points."""
    made = []

    def make(program="fhd", *args, sub=None, start=True, **kw):
        root = folder
        if sub:
            root = folder / sub
            root.mkdir()
        d = fh.Daemon(root, program)
        made.append(d)
        return d.start(*args, **kw) if start else d

    yield make
    for d in made:
        d.end()


@pytest.fixture
def daemon(make_daemon):
    return make_daemon()


@pytest.fixture
def client(daemon):
    with daemon.client() as c:
        yield c


@pytest.fixture
def market(client):
    """A small data set `m`."""
    client.synth("m")
    return "m"


@pytest.fixture
def spec(market):
    """spec(learn={'lr': 1e-3}) -> a small specification on data set `m`."""
    def make(*parts, **more):
        return fh.merge(fh.SMALL, {"data": {"dataset": market}}, *parts, more)

    return make
