import subprocess
import sys

import pytest

from btcp_tf import evaluation
from btcp_tf.main import main


def test_mirrored_from_the_command_line(tmp_path):
    command = [sys.executable, "-m", "btcp_tf.main", "--dataset=digits", "--max_train_images=500"]
    command += [f"--output_dir={tmp_path}/run", f"--export_dir={tmp_path}/models"]
    command += ["--bootstrap_draws=50"]
    command += ["--strategy=mirrored", "--logical_devices=2", "--method=mcp,btcp"]
    command += ["--classifier_epochs=2", "--estimator_epochs=1", "--finetune_epochs=1"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-2000:]
    _, extra = evaluation.load_rows(tmp_path / "run" / "results.json")
    assert extra["settings"]["strategy"] == "mirrored"
    assert extra["settings"]["logical_devices"] == "2"
    assert (tmp_path / "models" / "digits" / "1" / "saved_model.pb").exists()


@pytest.mark.prepared_data("fashion_mnist")
def test_real_images(tmp_path, prepared_data_dir, capsys):
    arguments = ["--dataset=fashion_mnist", "--preset=smoke", f"--data_dir={prepared_data_dir}"]
    arguments += [f"--output_dir={tmp_path}/run", f"--export_dir={tmp_path}/models"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "fashion_mnist, seed 0, test: frozen classifier" in printed
    assert "Epoch 4/4" in printed
    rows, extra = evaluation.load_rows(tmp_path / "run" / "results.json")
    assert rows[0]["accuracy"] > 0.6
    assert rows[0]["auroc"] > 0.6
    assert extra["data"]["train"] == 480
    assert "T-shirt/top" in (tmp_path / "run" / "report.html").read_text()
