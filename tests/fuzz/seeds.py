#!/usr/bin/env python3
"""First inputs of a fuzz target, so that it starts behind the first checks: seeds.py TARGET FOLDER."""
import json
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
target, folder = sys.argv[1], Path(sys.argv[2])


def write(name, data):
    (folder / f"seed-{name}").write_bytes(data)


if target == "request":
    with tempfile.TemporaryDirectory() as out:
        subprocess.run(["protoc", f"--python_out={out}", "-I", str(ROOT / "proto"), "fh.proto"], check=True)
        sys.path.insert(0, out)
        import fh_pb2 as pb

        for field in pb.Request.DESCRIPTOR.oneofs_by_name["call"].fields:
            req = pb.Request(magic=0x46484431, protocol=1, request_id="seed")
            message = getattr(req, field.name)
            message.SetInParent()
            for f in field.message_type.fields:
                if f.label == f.LABEL_REPEATED or f.message_type:
                    continue
                setattr(message, f.name, {f.CPPTYPE_STRING: "x"}.get(f.cpp_type, 1))
            write(field.name, req.SerializeToString())
        req = pb.Request(magic=0x46484431, protocol=1, request_id="seed")
        for section in pb.JobSpec.DESCRIPTOR.fields:
            if section.message_type:
                part = getattr(req.start_job.spec, section.name)
                for f in section.message_type.fields:
                    setattr(part, f.name, "x" if f.cpp_type == f.CPPTYPE_STRING else 1)
        write("spec", req.SerializeToString())
elif target == "jobfile":
    write("small", b"name: a\ndata:\n  dataset: m\nlearn:\n  lr: 3e-4\n  loss: c51\nlabels:\n  desk: fx\n")
    write("json", b'{"data": {"dataset": "m"}, "net": {"atoms": 51}}')
elif target == "safetensors":
    header = json.dumps({"__metadata__": {"k": "v"}, "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
                         "b": {"dtype": "I64", "shape": [1], "data_offsets": [16, 24]}}).encode()
    header += b" " * (-len(header) % 8)
    write("two", struct.pack("<Q", len(header)) + header + bytes(24))
elif target == "csv":
    for path in (ROOT / "tests" / "cases").glob("*"):
        if path.is_file() and path.stat().st_size < 16384:
            write(path.name, b"\x00" + path.read_bytes())
elif target == "json":
    row = b"[%d, 100.5, 101, 100, 100.25, 3.5]"
    write("array", b"\x00" + b",".join(row % (1704186000000 + 60000 * i) for i in range(6)) + b"]")
    write("names", b"\x00" + b'["time","open","high","low","close","volume"],["2024-01-02 09:00",1,2,1,2,5],["2024-01-02 09:01",2,2,1,1,null]]')
    write("list", b"\x40[1704186000,1,2,0.5,1.5,9,3],[1704186060,1.5,2,1,1,9,3]]")
elif target == "dbn":
    sys.path.insert(0, str(ROOT / "tests" / "data"))
    import dbn_files

    for name, data in dbn_files.GOOD.items():
        write(name, b"\x00" + data[3:3 + 12000])
    write("two", b"\x40" + dbn_files.interleaved()[3:])
    late = b"".join(dbn_files.bar(2**63 - 2 - back * 60 * 10**9, 1, 2, 1, 2, 5) for back in (1, 0))
    write("late", b"\x20" + (dbn_files.metadata(2) + late)[3:])
    write("case", b"\x20" + (ROOT / "tests" / "cases" / "syn_negative.dbn").read_bytes()[3:])
