"""Ctrl-C and SIGTERM in commands, at moments that stand-ins for slow modules hold on to."""

import os
import signal
import subprocess
import sys
import time
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

ENDS = [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]

# What modules written in C++ make of an interrupt; and what callbacks do.
WAYS = ["raise ImportError('initialization failed')", "pass"]


def listen():
    """Undoes that whoever started the tests in the background lets SIGINT be ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def interrupted(words, stubs, number=signal.SIGINT, **settings):
    """(exit status, stderr) of a command that receives a signal once it prints "importing"."""
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
        process.send_signal(number)
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
    for number, status, word in ENDS:
        assert interrupted(words, stubs, number) == (status, f"\n{word}\n")


def test_as_a_console_script(tmp_path):
    script = tmp_path / "btcp_tf"
    script.write_text("import sys\nfrom btcp_tf.main import main\nsys.exit(main())\n")
    stubs = tmp_path / "stubs"
    stubs.mkdir()
    words = [sys.executable, str(script), "--dataset=digits"]
    assert interrupted(words, stub(stubs, "absl", WAYS[0])) == (130, "\ninterrupted\n")


@pytest.mark.parametrize("number, status, word", ENDS)
@pytest.mark.parametrize("way", WAYS)
def test_while_tensorflow_is_imported(tmp_path, way, number, status, word):
    words = [sys.executable, "-m", "btcp_tf.main", "--dataset=digits"]
    words.append(f"--output_dir={tmp_path}/run")
    stubs = stub(tmp_path, "tensorflow", way)
    assert interrupted(words, stubs, number, cwd=tmp_path) == (status, f"\n{word}\n")


@pytest.mark.parametrize(
    "kind, status, word",
    [(KeyboardInterrupt, 130, "interrupted"), (interrupt.Terminated, 143, "terminated")],
)
@pytest.mark.parametrize("way", ["raise", "raise ImportError('initialization failed')"])
def test_work_says_how_to_go_on(capsys, way, kind, status, word):
    code = f"try:\n    raise kind\nexcept KeyboardInterrupt:\n    {way}"
    assert command.carry_out(lambda: exec(code, {"kind": kind}), verbose=1) == status
    assert capsys.readouterr().err == f"\n{word}; the same command goes on from here\n"


@pytest.fixture
def working(monkeypatch):
    """This process as a command at work, whose steps have half a second after SIGTERM."""
    monkeypatch.setattr(interrupt, "GRACE", 0.5)
    before = signal.signal(signal.SIGTERM, interrupt._end)
    with interrupt.raised():
        yield
    signal.signal(signal.SIGTERM, before)


def receive():
    os.kill(os.getpid(), signal.SIGTERM)


def test_sigterm_waits_for_the_step(working):
    done = []
    with pytest.raises(interrupt.Terminated), interrupt.by_step():
        for step in range(5):
            if step == 1:
                receive()
            done.append(step)
            interrupt.step_done()
    assert done == [0, 1]


def test_sigterm_waits_for_no_step_outside_of_steps(working):
    with interrupt.by_step():
        interrupt.step_done()
    with pytest.raises(interrupt.Terminated):
        receive()
        time.sleep(5)
        pytest.fail("it went on")


def test_a_signal_while_an_object_is_freed_is_not_lost(working):
    """Python ignores errors there, and says so through `sys.unraisablehook`."""

    class Freed:
        def __del__(self):
            receive()

    before = sys.unraisablehook
    with pytest.raises(interrupt.Terminated):
        Freed()
        time.sleep(5)
    with interrupt.raised():
        assert sys.unraisablehook is not before
    assert sys.unraisablehook is before


def test_sigterm_in_the_last_step_ends_with_the_block(working):
    with pytest.raises(interrupt.Terminated), interrupt.by_step():
        receive()
    # Not lost with an error, after which a study would go on with the next run.
    with pytest.raises(interrupt.Terminated) as caught, interrupt.by_step():
        receive()
        raise ValueError("the disk is full")
    assert isinstance(caught.value.__context__, ValueError)


def test_noted_signals_are_raised_behind_the_block(working):
    done = []
    with pytest.raises(interrupt.Terminated), interrupt.noted() as came:
        assert came == []
        receive()
        assert came == [signal.SIGTERM]
        os.kill(os.getpid(), signal.SIGTERM)
        done.append("the block's end")
    assert done
    with interrupt.noted() as came:
        pass
    # The usual way is back.
    with pytest.raises(interrupt.Terminated):
        receive()
        time.sleep(5)


def test_a_long_step_is_cut_off(working):
    start = time.monotonic()
    with pytest.raises(interrupt.Terminated), interrupt.by_step():
        receive()
        time.sleep(20)
    assert 0.4 < time.monotonic() - start < 10


def test_a_second_sigterm_and_ctrl_c_end_a_step_at_once(working, monkeypatch):
    monkeypatch.setattr(interrupt, "GRACE", 60)
    for second in (signal.SIGTERM, signal.SIGINT):
        with pytest.raises(KeyboardInterrupt), interrupt.by_step():
            receive()
            os.kill(os.getpid(), second)
            time.sleep(5)
            pytest.fail("it went on")


def test_other_programs_keep_their_own_ways(tmp_path):
    code = (
        "import btcp_tf, signal; print(signal.getsignal(2) is signal.default_int_handler "
        "and signal.getsignal(15) is signal.SIG_DFL)"
    )
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
