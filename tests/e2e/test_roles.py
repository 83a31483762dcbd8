"""What users may do on an ipc socket: the setting `roles`, told by the kernel and not by the client."""
import os

import pytest

import fh
from fh import pb

ME = os.getuid()


def daemon_with(make_daemon, folder, roles, **more):
    config = folder / "fhd.yaml"
    config.write_text(f'roles: "{roles}"\n' + "".join(f'{k}: "{v}"\n' for k, v in more.items()))
    return make_daemon("fhd", "--config", str(config))


def denied(client, call, message=None):
    with pytest.raises(fh.CallError) as e:
        client.call(call, message)
    assert e.value.code == pb.DENIED, e.value
    return e.value


def synth(name="m"):
    return pb.SynthDatasetRequest(name=name, kind="walk", bars=500, seed=1)


@pytest.mark.parametrize("role", ["read", "submit", "admin"])
def test_a_user_may_what_the_role_says(make_daemon, folder, role):
    d = daemon_with(make_daemon, folder, f"admin:{ME + 1}, {role}:{ME}")
    with d.client() as c:
        assert c.call("info").state == "running"
        if role == "read":
            error = denied(c, "synth_dataset", synth())
            assert error.field == "user" and "submit" in error.text and "read" in error.text
        else:
            assert c.call("synth_dataset", synth()).dataset.name == "m"
        if role == "admin":
            c.call("drain")
            c.call("drain", pb.DrainRequest(off=True))
        else:
            denied(c, "drain")
    assert d.ctl("drain", code=0 if role == "admin" else 4)


def test_a_user_without_a_role_is_not_let_in(make_daemon, folder):
    d = daemon_with(make_daemon, folder, f"admin:{ME + 1}, submit:@{max(os.getgroups() + [os.getgid()]) + 1}")
    result = d.ctl("ping", code=6)
    assert "closed the connection at once" in result.err and "role" in result.err and "Is fhd running" not in result.err
    assert f"uid={ME}" in d.log() and d.alive()


def test_a_token_may_give_more(make_daemon, folder):
    tokens = folder / "tokens"
    tokens.write_text("admin grown-up\n")
    tokens.chmod(0o600)
    d = daemon_with(make_daemon, folder, f"read:{ME}", token_file=tokens)
    with d.client() as c:
        assert c.call("info").state == "running"
        denied(c, "drain")
        c.call("drain", token="grown-up")
        denied(c, "drain", None)


def test_tcp_is_no_way_around(make_daemon, folder):
    with fh.loopback_port() as port:
        config = folder / "fhd.yaml"
        config.write_text(f'roles: "read:{ME}"\nlisten: ["ipc://{folder}/fhd.sock", "tcp://127.0.0.1:{port}"]\n')
        d = make_daemon(start=False)
        d.start("--config", str(config), url=False)
        assert d.ctl("info").code == 0
        with fh.Client(f"tcp://127.0.0.1:{port}") as c:
            assert denied(c, "info").field == "token"


def test_a_listener_that_died_keeps_its_roles(make_daemon, folder):
    """The doors behind the socket are opened again with the roles they had."""
    d = daemon_with(make_daemon, folder, f"submit:{ME}")
    for door in ("in", "in.s", "in.r"):
        assert (folder / f"fhd.sock.{door}").exists()
    (folder / "fhd.sock.in.s").unlink()  # nobody gets through any more
    with d.client() as c:
        assert c.call("synth_dataset", synth()).dataset.name == "m"
        denied(c, "drain")
        assert c.call("info").relistens >= 1


def test_a_wrong_setting_ends_the_start(make_daemon, folder):
    d = make_daemon(start=False)
    config = folder / "fhd.yaml"
    config.write_text("roles: king:root\n")
    d.start("--config", str(config), ready=False)
    assert d.wait() == 2
    assert "king" in d.log() and "roles" in d.log()
    d.proc = None
