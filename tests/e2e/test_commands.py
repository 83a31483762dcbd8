"""Every command of fhctl with what it prints and how it ends."""
import csv
import json
import os
import re
import signal

import pytest

import fh
from fh import pb


def start(daemon, *args, tree=None, **kw):
    return daemon.ctl("start", *fh.set_args(fh.merge(fh.SMALL, {"data": {"dataset": "m"}}, tree)), *args, **kw)


def test_help_lists_every_command():
    text = fh.ctl("--help").out
    for command in ("start", "stop", "pause", "resume", "list", "show", "wait", "metrics", "evaluate", "act", "plot", "checkpoint", "dataset",
                    "info", "ping", "spec", "instruments", "version", "drain", "shutdown"):
        assert re.search(rf"\b{command}\b", text), command
    assert fh.ctl("start", "--help").out.startswith(("Usage", "usage", "fhctl"))


def test_version_needs_no_daemon():
    out = fh.ctl("version", url="ipc:///nonexistent/fhd.sock", code=None)
    assert "0.1.0" in out.out


@pytest.mark.same_threads
def test_spec_prints_every_key_and_reads_back(daemon, client, market, folder):
    text = daemon.ctl("spec").out
    for field in pb.JobSpec.DESCRIPTOR.fields:
        if not field.message_type:
            continue
        assert re.search(rf"^{field.name}:", text, re.M), field.name
        for key in field.message_type.fields:
            assert re.search(rf"^\s*#?\s*{key.name}:", text, re.M), f"{field.name}.{key.name}"
    assert text.count("#") > 40, "the default is commented"
    path = folder / "default.yaml"
    path.write_text(re.sub(r"^(\s*)#?\s*dataset:.*$", r"\1dataset: m", text, flags=re.M))
    result = daemon.ctl("start", path, "-o", "json")
    spec = client.show(result.json()["job"]["name"]).spec
    assert spec.learn.gamma == 0.9 and spec.run.steps_per_epoch == 300 and spec.net.atoms == 51


@pytest.mark.same_threads
def test_spec_in_every_format_is_a_job_file(daemon, market, folder):
    """What spec makes complete starts the same job again, its name and labels with it."""
    path = folder / "mine.yaml"
    path.write_text("name: again\nlabels: {team: 'yes'}\ndata: {dataset: m}\nrun: {epochs: 1, steps_per_epoch: 5}\n")
    assert daemon.ctl("start", path).code == 0
    for form in "table", "json", "yaml":
        other = folder / f"complete.{form}"
        other.write_text(daemon.ctl("spec", path, "-o", form).out)
        result = daemon.ctl("start", other, *([] if form == "table" else ["--name", "again"]))
        assert result.code == 0 and "attached" in result.err, result
    assert daemon.ctl("list", "--label", "team=yes", "-o", "json").json()["job"][0]["name"] == "again"


@pytest.mark.same_threads
def test_an_instrument_on_the_command_line(folder):
    presets = {p["name"]: p for p in json.loads(fh.ctl("instruments", "-o", "json").out)["instrument"]}
    assert presets["6J"]["tick"] == 5e-7 and presets["6J"]["multiplier"] == 12500000 and len(presets) == 17
    table = fh.ctl("instruments").out.splitlines()
    assert len(table) == 18 and re.search(r"^6J .* 0\.0000005 ", table[11]), table[11]
    job = folder / "job.yaml"
    job.write_text("instrument: CL\nenv:\n  fee: 9\n")
    env = json.loads(fh.ctl("spec", str(job), "--instrument", "es", "--set", "env.half_spread=0.5", "-o", "json").out)["env"]
    assert (env["tick"], env["multiplier"], env["half_spread"], env["fee"], env["lot"]) == (0.25, 50, 0.5, 2.25, 1)
    env = json.loads(fh.ctl("spec", str(job), "-o", "json").out)["env"]
    assert (env["tick"], env["multiplier"], env["half_spread"], env["fee"]) == (0.01, 1000, 0.01, 9)
    job.write_text("instrument: CL\n" + fh.ctl("spec").out)
    assert "would set nothing" in fh.ctl("spec", str(job), code=2).err
    job.write_text(fh.ctl("spec").out)
    assert json.loads(fh.ctl("spec", str(job), "--instrument", "ZB", "-o", "json").out)["env"]["tick"] == 0.03125
    assert "there are ES, NQ" in fh.ctl("spec", "--instrument", "ESX", code=2).err


def test_start_wait_and_exit_zero(daemon, market):
    result = start(daemon, "--name", "w", "--wait", code=0)
    assert "done" in (result.out + result.err).lower()
    assert daemon.ctl("wait", "w").code == 0
    shown = daemon.ctl("show", "w").out
    for word in ("done", "200", "w"):
        assert word in shown.lower()


@pytest.mark.same_threads
def test_show_names_what_an_operator_asks_for(daemon, client, market):
    start(daemon, "--name", "s", tree=fh.ENDLESS)
    client.wait_step("s", 100)
    out = daemon.ctl("show", "s").out.lower()
    for word in ("running", "step", "/s", "eta", "memory", "loss"):
        assert word in out, (word, out)
    job = daemon.ctl("show", "s", "-o", "json").json()
    job = job.get("job", job)
    assert job["state"] == "RUNNING" and float(job["steps_per_second"]) > 0 and int(job["memory"]["total"]) > 0
    assert daemon.ctl("show", "s", "-o", "yaml").out.startswith("schema_version: 1")


@pytest.mark.same_threads
def test_rewards_below_an_atom_are_warned_of(daemon, market):
    """While it runs, and in show for whoever comes later; a job with the default scale has no such line."""
    result = start(daemon, "--name", "blind", "--set", "env.reward_scale=1", "-f")
    assert result.code == 0 and "warning: reward_std_per_atom" in result.err, result
    assert re.search(r"^Warning +reward_std_per_atom is .*env.reward_scale", daemon.ctl("show", "blind").out, re.M)
    start(daemon, "--name", "sees", "--set", "net.atoms=51", "--wait")
    assert "reward_std_per_atom is" not in daemon.ctl("show", "sees").out


@pytest.mark.same_threads
def test_list_and_labels(daemon, client, market):
    start(daemon, "--name", "a", "--label", "desk=fx", tree=fh.ENDLESS)
    start(daemon, "--name", "b", tree=fh.ENDLESS)
    out = daemon.ctl("list").out
    assert re.search(r"\ba\b", out) and re.search(r"\bb\b", out)
    rows = daemon.ctl("list", "-o", "json").json()["job"]
    assert [r["name"] for r in rows] == ["a", "b"]
    rows = daemon.ctl("list", "--label", "desk=fx", "-o", "json").json()["job"]
    assert [r["name"] for r in rows] == ["a"]
    rows = list(csv.DictReader(daemon.ctl("list", "-o", "csv").out.splitlines()))
    assert [r["name"] for r in rows] == ["a", "b"] and rows[1]["state"] == "queued" and rows[1]["step"] == "0"
    assert int(rows[0]["planned_steps"]) > 0 and rows[1]["eta_seconds"] == ""
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", rows[0]["created"]), rows[0]


def test_stop_gives_wait_one(daemon, client, market):
    start(daemon, "--name", "x", tree=fh.ENDLESS)
    client.wait_step("x", 20)
    daemon.ctl("stop", "x")
    assert client.show("x").state == pb.STOPPED
    assert daemon.ctl("wait", "x", code=1).code == 1
    again = daemon.ctl("stop", "x", code=(0, 5))
    assert "stopped" in (again.out + again.err).lower()
    # Its name attaches to it and says how it can go on; then it does.
    assert "fhctl resume x" in start(daemon, "--name", "x", tree=fh.ENDLESS).err
    at = client.show("x").step
    daemon.ctl("resume", "x")
    client.wait_step("x", at + 20)


def test_pause_and_resume(daemon, client, market):
    start(daemon, "--name", "p", tree=fh.ENDLESS)
    client.wait_step("p", 20)
    daemon.ctl("pause", "p")
    paused = client.show("p")
    assert paused.state == pb.PAUSED
    assert daemon.ctl("wait", "p", "--timeout", str(fh.SLOWDOWN), code=124).code == 124
    daemon.ctl("resume", "p")
    client.wait_step("p", paused.step + 20)


@pytest.mark.parametrize("loss", ["mse", "c51"])
def test_absurd_numbers_end_a_job_and_never_the_daemon(daemon, client, market, loss):
    """Rewards of 1e18, a rate of 1, no clipping: done, or failed as diverged with exit code 1; the daemon goes on."""
    tree = {"learn": {"lr": 1, "max_grad_norm": 1e9, "loss": loss}, "net": {"v_min": -1e9, "v_max": 1e9}, "env": {"reward_scale": 1e18}}
    result = start(daemon, "--name", "boom", "--wait", tree=tree, code=(0, 1))
    job = client.show("boom")
    assert (job.state, result.code) in ((pb.DONE, 0), (pb.FAILED, 1)), result
    assert job.state == pb.DONE or (job.error.code == pb.DIVERGED and job.error.text)
    assert daemon.alive()
    start(daemon, "--name", "after", "--wait")


def test_failed_job_gives_one(make_daemon):
    """A job that starts from a checkpoint whose file was damaged meanwhile: it fails by name, whoever waits gets 1."""
    d = make_daemon()
    with d.client() as c:
        c.synth("m")
        start(d, "--name", "first", "--wait")
        checkpoint = c.show("first").last_checkpoint
        path = d.state / "checkpoints" / f"{checkpoint}.safetensors"
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        result = start(d, "--name", "boom", "--set", "init.from=checkpoint", "--set", f"init.checkpoint={checkpoint}", "--wait", code=1)
        assert checkpoint in result.out + result.err
        job = c.show("boom")
        assert job.state == pb.FAILED and job.error.code in (pb.CORRUPT, pb.IO_ERROR) and job.reason
        assert d.ctl("wait", "boom", code=1).code == 1


@pytest.mark.same_threads
@pytest.mark.parametrize("args,word", [
    (["start", "--set", "learn.lrr=1e-3"], "learn.lr"),
    (["start", "--set", "lern.lr=1e-3"], "learn.lr"),
    (["start", "--set", "learn.gamma=1.5"], "learn.gamma"),
    (["start", "--set", "net.v_min=10", "--set", "net.v_max=-10"], "net.v_m"),
    (["start", "--set", "net.atoms=1"], "net.atoms"),
    (["start", "--set", "learn.loss=c52"], "c51"),
    (["start", "--set", "replay.capacity=1000"], "replay.capacity"),
    (["start", "--set", "learn.lr=nan"], "learn.lr"),
    (["start", "--set", "learn.batch="], "learn.batch"),
    (["start", "--set", "data.train=0.9", "--set", "data.validation=0.3"], "data."),
    (["strat"], "start"),
    (["start", "--nmae", "x"], "name"),
    (["show"], "show"),
    (["list", "-o", "jsn"], "json"), (["plot", "-o", "json"], "has table"),
])
def test_usage_is_two_and_names_the_nearest(daemon, market, args, word):
    extra = ["--set", "data.dataset=m"] if args[0] == "start" else []
    result = daemon.ctl(*args, *extra, code=2)
    assert word in result.err, result
    assert result.out == ""


@pytest.mark.parametrize("section,key,value,field", [
    ("learn", "gamma", 1.5, "learn.gamma"), ("net", "atoms", 1, "net.atoms"), ("learn", "lr", float("nan"), "learn.lr"),
    ("learn", "lr", float("inf"), "learn.lr"), ("collect", "envs", -1, "collect.envs"), ("data", "train", 1.5, "data.train"),
    ("replay", "capacity", 1000, "replay.capacity"), ("env", "initial_cash", 0.0, "env.initial_cash"),
])
def test_the_daemon_checks_again(client, spec, section, key, value, field):
    """The same faults past fhctl: refused by name, and no job appears."""
    with pytest.raises(fh.CallError) as e:
        client.start(spec({section: {key: value}}))
    assert e.value.code == pb.INVALID and e.value.field == field, e.value
    assert not client.call("list_jobs").job


def test_crossed_support_is_refused_by_the_daemon(client, spec):
    with pytest.raises(fh.CallError) as e:
        client.start(spec(net={"v_min": 5.0, "v_max": 5.0}))
    assert e.value.code == pb.INVALID and e.value.field.startswith("net.v_m")


def test_unknown_field_in_a_specification_is_refused(client, spec, daemon):
    req = client.request("start_job", pb.StartJobRequest(spec=fh.spec_message(spec())))
    raw = bytearray(req.start_job.spec.learn.SerializeToString())
    raw += bytes([0xF8, 0x06, 0x01])  # field 111, varint 1
    data = rebuild(req, raw)
    reply = pb.Reply.FromString(client.exchange(data))
    assert reply.error.code == pb.INVALID and "learn" in (reply.error.field + reply.error.text)


def rebuild(req, learn_bytes):
    """The request's bytes with other bytes for spec.learn."""
    from google.protobuf.internal.encoder import _VarintBytes

    def field(number, payload):
        return _VarintBytes(number << 3 | 2) + _VarintBytes(len(payload)) + bytes(payload)

    spec = req.start_job.spec
    spec_bytes = b""
    for descriptor, value in spec.ListFields():
        payload = learn_bytes if descriptor.name == "learn" else value.SerializeToString() if descriptor.message_type else value.encode()
        spec_bytes += field(descriptor.number, payload)
    outer = pb.Request()
    outer.CopyFrom(req)
    outer.ClearField("start_job")
    return outer.SerializeToString() + field(pb.Request.DESCRIPTOR.fields_by_name["start_job"].number, field(1, spec_bytes))


def test_not_found_is_three(daemon, market):
    for args in (["show", "ghost"], ["stop", "ghost"], ["wait", "ghost"], ["metrics", "ghost"], ["evaluate", "ghost"], ["dataset", "show", "ghost"],
                 ["dataset", "drop", "ghost"], ["checkpoint", "get", "ghost", "/tmp/ghost"], ["checkpoint", "drop", "ghost"]):
        result = daemon.ctl(*args, code=3)
        assert "ghost" in result.err, args
    start(daemon, "--set", "data.dataset=ghost", code=(2, 3))


def test_conflict_is_five(daemon, client, market):
    start(daemon, "--name", "busy", tree=fh.ENDLESS)
    client.wait_step("busy", 20)
    result = daemon.ctl("dataset", "drop", "m", code=5)
    assert "busy" in result.err or "1" in result.err
    result = daemon.ctl("resume", "busy", code=(0, 5))
    daemon.ctl("dataset", "synth", "--kind", "walk", "--bars", "500", "--seed", "2", "--name", "m", code=5)
    assert client.call("show_dataset", pb.ShowDatasetRequest(name="m")).dataset.bars == 2000


def test_same_name_attaches_other_specification_conflicts(daemon, client, market):
    start(daemon, "--name", "n", tree=fh.ENDLESS)
    first = client.show("n").id
    attached = start(daemon, "--name", "n", tree=fh.ENDLESS, code=0)
    assert "attach" in (attached.out + attached.err).lower()
    assert client.show("n").id == first and len(client.call("list_jobs").job) == 1
    refused = start(daemon, "--name", "n", "--set", "learn.lr=0.01", tree=fh.ENDLESS, code=5)
    assert "learn.lr" in refused.err
    assert len(client.call("list_jobs").job) == 1


@pytest.mark.same_threads
def test_job_file_with_set_over_it(daemon, client, market, folder):
    path = folder / "job.yaml"
    path.write_text(fh.yaml_text(fh.merge({"name": "filed"}, fh.SMALL, {"data": {"dataset": "m"}})))
    daemon.ctl("start", path, "--set", "run.seed=11", "--wait")
    job = client.show("filed")
    assert job.spec.run.seed == 11 and job.spec.learn.batch == 16
    bad = folder / "bad.yaml"
    bad.write_text(path.read_text().replace("atoms:", "atmos:"))
    result = daemon.ctl("start", bad, code=2)
    assert "net.atoms" in result.err and "atmos" in result.err and re.search(r"bad\.yaml:\d+", result.err)
    as_json = folder / "job.json"
    as_json.write_text(json.dumps(fh.merge({"name": "jsoned"}, fh.SMALL, {"data": {"dataset": "m"}})))
    daemon.ctl("start", as_json, "--wait")


@pytest.mark.same_threads
def test_metrics_table_csv_json_and_since(daemon, client, market):
    start(daemon, "--name", "m1", "--wait")
    table = daemon.ctl("metrics", "m1").out
    assert "loss" in table.lower()
    table = daemon.ctl("metrics", "m1", "-o", "csv").out.splitlines()
    header = table[0].split(",")
    assert "step" in header and "loss" in header and len(table) > 10
    seq = header.index("seq")
    after = daemon.ctl("metrics", "m1", "--since", "5", "-o", "csv").out.splitlines()
    assert min(int(line.split(",")[seq]) for line in after[1:]) > 5
    named = [m["name"] for m in fh.ctl("metrics", "--list", "-o", "json").json()["metric"]]
    assert after[0].endswith("policy," + ",".join(named)), "every column is explained"
    samples = daemon.ctl("metrics", "m1", "-o", "json").json()
    assert samples["sample"][0]["seq"] == "1"


@pytest.mark.same_threads
def test_metrics_go_to_tensorboard(daemon, market, folder):
    start(daemon, "--name", "tb", "--wait")
    said = daemon.ctl("metrics", "tb", "--tensorboard", folder / "runs").err
    file, = (folder / "runs" / "tb").iterdir()
    whole = file.read_bytes()
    tags = set(re.findall(rb"(?:report|validation|validation_online|test|test_online)/[a-z_]+", whole))
    assert {b"report/loss", b"validation/sharpe", b"test_online/return"} <= tags and str(file) in said
    followed = daemon.ctl("metrics", "tb", "-f", "--tensorboard", folder / "runs")
    assert file.read_bytes() == whole and "validation" in followed.out  # the same file anew, and people see the validations meanwhile
    assert "--since" in daemon.ctl("metrics", "tb", "--since", "3", "--tensorboard", folder / "runs", code=2).err


@pytest.mark.same_threads
def test_evaluate_prints_agent_and_benchmarks(daemon, market):
    start(daemon, "--name", "e", "--wait")
    for split in ("validation", "test"):
        out = daemon.ctl("evaluate", "e", "--split", split).out.lower()
        for word in ("sharpe", "sortino", "drawdown", "trades", "win", "turnover", "exposure"):
            assert word in out, (word, out)
        assert "hold" in out and "never" in out
    never = daemon.ctl("evaluate", "e", "-o", "json").json()
    rows = {r["name"]: {v["name"]: float(v["value"]) for v in r["value"]} for r in never.get("evaluate", never)["report"]}
    assert rows["never_trade"]["pnl"] == 0 and rows["never_trade"]["trades"] == 0
    daemon.ctl("evaluate", "e", "--split", "tset", code=2)


@pytest.mark.same_threads
def test_windows_have_a_line_each(daemon, market):
    start(daemon, "--name", "w", "--wait")
    out = daemon.ctl("evaluate", "w", "--windows", "3", "--no-benchmarks").out
    lines = out[out.index("WINDOW"):].splitlines()
    assert [line.split()[0] for line in lines] == ["WINDOW", "1", "2", "3"]
    assert [line.split()[2] for line in lines[1:3]] == [line.split()[1] for line in lines[2:4]]  # a window begins where the last one ends
    windows = daemon.ctl("evaluate", "w", "--windows", "3", "-o", "json").json()["window"]
    trades = [next(v["value"] for v in w["value"] if v["name"] == "trades") for w in windows]
    assert [int(line.replace(" %", "%").split()[6]) for line in lines[1:]] == trades
    assert "WINDOW" not in daemon.ctl("evaluate", "w").out
    for k in ("0", "1025", "x"):
        assert "--windows" in daemon.ctl("evaluate", "w", "--windows", k, code=2).err


@pytest.mark.same_threads
def test_act_answers_states(daemon, client, market):
    start(daemon, "--name", "a", "--wait")
    states = "\n".join(",".join(["0"] * 48) for _ in range(3)) + "\n"
    result = daemon.ctl("act", "a", "-o", "json", input=states, code=0)
    reply = result.json()
    reply = reply.get("act", reply)
    actions = [int(a) for a in reply["action"]]
    q = [float(x) for x in reply["q"]]
    assert len(actions) == 9 and len(q) == 33 and actions[:3] == actions[3:6]
    sizes, i = (5, 3, 3), 0
    for d, n in enumerate(sizes):
        row = q[i:i + n]
        assert actions[d] == row.index(max(row))
        i += n
    words = [("-1", "-0.5", "0", "0.5", "1"), ("market", "limit", "ioc"), ("0.25", "0.5", "1")]
    table = daemon.ctl("act", "a", input=states).out.splitlines()
    assert table[0].split()[:9] == ["row", "exposure", "order", "urgency"] + [f"q({w})" for w in words[0]], table[0]
    assert table[1].split()[:4] == ["0"] + [words[d][actions[d]] for d in range(3)], table[1]
    csv_row = daemon.ctl("act", "a", "-o", "csv", input=states).out.splitlines()[1].split(",")
    assert [int(x) for x in csv_row[1:4]] == actions[:3]
    wrong = daemon.ctl("act", "a", input="1,2,3\n", code=2)
    assert "48" in wrong.err


def test_each_trial_of_a_population_can_be_asked(daemon, client, market, folder):
    """evaluate and act take the network that --trial and --policy name, by default the first and what the job validates."""
    start(daemon, "--name", "pop", "--set", "run.population=3", "--set", "run.validate_policy=online", "--set", "learn.lr=0.01",
          "--set", "net.trunk1=32", "--set", "run.steps_per_epoch=400", "--wait")
    last = {(s.trial, s.policy): {v.name: v.value for v in s.value} for s in client.samples("pop")
            if s.kind == pb.VALIDATION and s.split == "validation"}
    assert len(last) == 6 and len({x["pnl"] for x in last.values()}) >= 4, "three trials of two networks, not all alike"

    def pnl(*args):
        reports = daemon.ctl("evaluate", "pop", "-o", "json", *args).json()["report"]
        return next(v["value"] for v in reports[0]["value"] if v["name"] == "pnl")

    for trial in range(3):
        assert pnl("--trial", trial) == last[trial, pb.ONLINE]["pnl"]
        assert pnl("--trial", trial, "--policy", "target") == last[trial, pb.TARGET]["pnl"]
    assert pnl() == last[0, pb.ONLINE]["pnl"]
    assert "trial 2 of 0 to 2" in daemon.ctl("evaluate", "pop", "--trial", 2).out
    assert "0 to 2" in daemon.ctl("evaluate", "pop", "--trial", 3, code=2).err
    state = ",".join(["0"] * 48) + "\n"
    q = [daemon.ctl("act", "pop", "-o", "json", "--trial", k, input=state).json()["q"] for k in range(3)]
    assert q[0] != q[1] != q[2] != q[0]
    daemon.ctl("plot", "pop", folder / "two.svg", "--trial", 2)
    assert "of trial 2" in (folder / "two.svg").read_text()
    daemon.ctl("plot", "pop", folder / "loss.svg", "--kind", "loss", "--trial", 1)
    assert f"learning, {400 // fh.SMALL['run']['report_every']} reports" in (folder / "loss.svg").read_text(), "of one trial alone"
    assert daemon.ctl("metrics", "pop").out.split()[0] == "TRIAL" and "trial 2 of 0 to 2" in daemon.ctl("show", "pop").out


def test_a_checkpoint_goes_to_a_file(daemon, market, folder):
    start(daemon, "--name", "k", "--wait")
    ident = daemon.ctl("checkpoint", "list", "k", "-o", "json").json()["checkpoint"][0]["id"]
    assert "standard output" in daemon.ctl("checkpoint", "get", ident, "-", code=2, cwd=folder).err
    assert not (folder / "-").exists()


@pytest.mark.same_threads
def test_plot_writes_an_svg(daemon, market, folder):
    import xml.dom.minidom

    start(daemon, "--name", "p", "--wait")
    path = folder / "p.svg"
    daemon.ctl("plot", "p", path, code=0)
    tree = xml.dom.minidom.parse(str(path))
    assert tree.documentElement.tagName == "svg"
    text = path.read_text().lower()
    for word in ("equity", "drawdown", "price", "loss"):
        assert word in text, word
    sharpe = daemon.ctl("evaluate", "p", "-o", "json").json()["report"][0]["value"]
    sharpe = next(v["value"] for v in sharpe if v["name"] == "sharpe")
    assert f"sharpe {sharpe:.3g}  " in text  # the numbers of `evaluate` stand above the pictures
    assert "nan" not in re.sub(r"<text.*?</text>", "", text) and "fees" not in text  # this job's are 0
    start(daemon, "--name", "paid", "--wait", tree={"env": {"fee": 0.001}, "learn": {"lr": 3e-3}, "run": {"steps_per_epoch": 2000}})
    daemon.ctl("evaluate", "paid", "--trace", folder / "t.csv")
    rows = [line.split(",") for line in (folder / "t.csv").read_text().splitlines()]
    paid = sum(float(row[rows[0].index("fee")]) for row in rows[1:])
    assert paid > 0
    for what in (["paid"], ["--trace", folder / "t.csv"]):
        daemon.ctl("plot", *what, "--out", path)
        assert f"fees {paid:.5g}<" in path.read_text(), (what, paid)


def test_checkpoint_list_save_get_drop(daemon, client, market, folder):
    start(daemon, "--name", "c", tree=fh.ENDLESS)
    client.wait_step("c", 40)
    daemon.ctl("checkpoint", "save", "c")
    rows = daemon.ctl("checkpoint", "list", "-o", "json").json()["checkpoint"]
    assert len(rows) == 1 and rows[0]["reason"] == "request"
    path = folder / "out.safetensors"
    daemon.ctl("checkpoint", "get", rows[0]["id"], path)
    assert path.stat().st_size == int(rows[0]["bytes"])
    daemon.ctl("stop", "c", "--discard") if "discard" in daemon.ctl("stop", "--help").out else daemon.ctl("stop", "c")
    daemon.ctl("checkpoint", "drop", rows[0]["id"])
    daemon.ctl("checkpoint", "get", rows[0]["id"], folder / "gone", code=3)
    for row in daemon.ctl("checkpoint", "list", "-o", "json").json().get("checkpoint", []):
        daemon.ctl("checkpoint", "drop", row["id"])
    assert "has no checkpoint, and it is over" in daemon.ctl("evaluate", "c", code=3).err


def test_start_from_a_checkpoint_and_warm(daemon, client, market):
    start(daemon, "--name", "first", "--wait")
    checkpoint = client.show("first").last_checkpoint
    start(daemon, "--name", "second", "--set", "init.from=checkpoint", "--set", f"init.checkpoint={checkpoint}", "--wait")
    start(daemon, "--name", "third", "--set", "init.from=warm", "--wait")
    start(daemon, "--name", "fourth", "--set", "init.from=checkpoint", "--set", "init.checkpoint=ghost", code=(2, 3))


def test_info_ping_and_drain(daemon, client, market):
    info = daemon.ctl("info").out.lower()
    for word in ("host", "running", "0.1.0"):
        assert word in info
    assert daemon.ctl("ping").code == 0
    start(daemon, "--name", "running", tree=fh.ENDLESS)
    client.wait_step("running", 20)
    start(daemon, "--name", "held")
    daemon.ctl("drain")
    assert client.call("info").state == "draining"
    refused = start(daemon, "--name", "new", code=6)
    assert "drain" in refused.err and "--off" in refused.err and "Is fhd running" not in refused.err
    client.stop("running")
    assert client.show("held").state == pb.QUEUED
    daemon.ctl("drain", "--off")
    client.wait_state("held", "DONE")


def test_shutdown_ends_the_daemon(daemon, market):
    daemon.ctl("shutdown")
    assert daemon.wait() == 0
    assert daemon.ctl("ping", code=6).code == 6


def test_two_jobs_share_nothing(daemon, client, market):
    """A neighbour changes nothing: the same seed alone and beside another job gives the same metrics."""
    start(daemon, "--name", "alone", "--wait")
    start(daemon, "--name", "noise", tree={"run": {"seed": 99}})
    start(daemon, "--name", "beside", "--wait")
    assert values(client, "alone") == values(client, "beside")
    assert values(client, "alone") != values(client, "noise")


TIMES = ("steps_per_second", "seconds", "_ns", "time", "per_second")


def values(client, job):
    out = []
    for s in client.samples(job):
        if s.kind != pb.STATE_CHANGE:
            out.append((s.kind, s.step, tuple((v.name, v.value) for v in s.value if not any(t in v.name for t in TIMES))))
    return out


def test_calls_have_a_deadline(daemon, market):
    """A stopped daemon does not hang fhctl."""
    os.kill(daemon.proc.pid, signal.SIGSTOP)
    try:
        fh.within(7 * fh.SLOWDOWN, lambda: daemon.ctl("list", "--timeout", "1", code=(6, 124)))
        fh.within(8 * fh.SLOWDOWN, lambda: start(daemon, "--name", "maybe", "--timeout", "1", code=(6, 255)))
    finally:
        os.kill(daemon.proc.pid, signal.SIGCONT)


def test_tokens_give_roles_and_the_rest_is_not_allowed(make_daemon, folder):
    """Exit code 4, with what is missing; a token that may do it does it."""
    path = folder / "tokens"
    path.write_text("read r-secret\nsubmit s-secret\nadmin a-secret\n")
    path.chmod(0o600)
    daemon = make_daemon("fhd", "--token-file", path)
    synth = ("dataset", "synth", "--name", "m", "--bars", "2000")
    for token, ping, submit, admin in (None, 4, 4, 4), ("wrong", 4, 4, 4), ("r-secret", 0, 4, 4), ("s-secret", 0, 0, 4), ("a-secret", 0, 0, 0):
        env = {"FHD_TOKEN": token} if token else {}
        for code, command in (ping, ("ping",)), (submit, synth), (admin, ("drain", "--off")):
            result = daemon.ctl(*command, code=code, env=env)
            assert code == 0 or ("token" in result.err and "FHD_TOKEN" in result.err), result
            assert "secret" not in result.err, result


@pytest.mark.same_threads
def test_files_never_take_the_place_of_a_pipe_or_a_link(daemon, market, folder):
    start(daemon, "--name", "w", "--wait")
    pipe, link = folder / "pipe", folder / "link"
    os.mkfifo(pipe)
    link.symlink_to(folder / "elsewhere")
    ident = daemon.ctl("checkpoint", "list", "w", "-o", "json").json()["checkpoint"][-1]["id"]
    for path in pipe, link, folder:
        for command in ("plot", "w", path), ("evaluate", "w", "--trace", path), ("checkpoint", "get", ident, path):
            assert "no plain file" in daemon.ctl(*command, code=2).err, (command, path)
    assert pipe.is_fifo() and link.is_symlink() and not (folder / "elsewhere").exists()
