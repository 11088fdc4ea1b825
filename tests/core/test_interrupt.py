"""Ctrl-C in commands, at moments that stand-ins for slow modules hold on to."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from btcp_tf.core import command, interrupt

CHECKOUT = Path(__file__).resolve().parents[2]

COMMANDS = ["main", "study", "report", "predict", "set_threshold", "monitor"]

SLOW = """\
import time
print("importing", flush=True)
try:
    time.sleep(60)
except KeyboardInterrupt:
    {}
"""

# What modules written in C++ make of an interrupt; and what callbacks do.
WAYS = ["raise ImportError('initialization failed')", "pass"]


def listen():
    """Undoes that whoever started the tests in the background lets SIGINT be ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def interrupted(words, stubs, **settings):
    """(exit status, stderr) of a command that receives SIGINT once it prints "importing"."""
    environment = os.environ | {"PYTHONPATH": f"{stubs}{os.pathsep}{CHECKOUT}"}
    process = subprocess.Popen(
        words,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=listen,
        **settings,
    )
    with process:
        for line in process.stdout:
            if line == "importing\n":
                break
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=50)
    return process.returncode, errors


def stub(folder, name, way):
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(SLOW.format(way))
    return folder


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", COMMANDS)
def test_before_a_command_reads_its_arguments(tmp_path, name, way):
    # The first module from elsewhere that any of them imports.
    stubs = stub(tmp_path, "absl", way)
    words = [sys.executable, "-m", f"btcp_tf.{name}"]
    assert interrupted(words, stubs) == (130, "\ninterrupted\n")


def test_as_a_console_script(tmp_path):
    script = tmp_path / "btcp_tf"
    script.write_text("import sys\nfrom btcp_tf.main import main\nsys.exit(main())\n")
    stubs = tmp_path / "stubs"
    stubs.mkdir()
    words = [sys.executable, str(script), "--dataset=digits"]
    assert interrupted(words, stub(stubs, "absl", WAYS[0])) == (130, "\ninterrupted\n")


@pytest.mark.parametrize("way", WAYS)
def test_while_tensorflow_is_imported(tmp_path, way):
    words = [sys.executable, "-m", "btcp_tf.main", "--dataset=digits"]
    words.append(f"--output_dir={tmp_path}/run")
    status, errors = interrupted(words, stub(tmp_path, "tensorflow", way), cwd=tmp_path)
    assert (status, errors) == (130, "\ninterrupted\n")


@pytest.mark.parametrize("way", ["raise", "raise ImportError('initialization failed')"])
def test_work_says_how_to_go_on(capsys, way):
    code = f"try:\n    raise KeyboardInterrupt\nexcept KeyboardInterrupt:\n    {way}"
    assert command.carry_out(lambda: exec(code), verbose=1) == 130
    assert capsys.readouterr().err == "\ninterrupted; the same command goes on from here\n"


def test_other_programs_keep_their_own_ways(tmp_path):
    code = "import btcp_tf, signal; print(signal.getsignal(2) is signal.default_int_handler)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, preexec_fn=listen
    )
    assert done.stdout == "True\n", done.stderr
    before = signal.getsignal(signal.SIGINT)
    with interrupt.raised(), interrupt.at_once(2):
        assert signal.getsignal(signal.SIGINT) is before


def test_one_that_is_ignored_stays_so(tmp_path):
    code = "import signal, btcp_tf; print(signal.getsignal(signal.SIGINT))"
    script = tmp_path / "btcp_tf"
    script.write_text(code)
    for ignored in (False, True):
        handler = signal.SIG_IGN if ignored else signal.default_int_handler
        done = subprocess.run(
            [sys.executable, str(script)],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
            preexec_fn=lambda handler=handler: signal.signal(signal.SIGINT, handler),
            capture_output=True,
            text=True,
        )
        assert ("_end" in done.stdout) != ignored, done.stdout + done.stderr
