"""Devices and distribution strategies."""

import tensorflow as tf


def make_strategy(name: str, logical_devices: int) -> tf.distribute.Strategy:
    """The distribution strategy of a run; call it before anything else touches TensorFlow.

    Args:
      name: "none" or "mirrored".
      logical_devices: With "mirrored", the number of devices that the CPU is
        split into; 0 takes all GPUs (or the one CPU).

    Raises:
      RuntimeError: If TensorFlow has started already with other devices.
    """
    if name == "none":
        return tf.distribute.get_strategy()
    devices = None
    if logical_devices:
        cpu = tf.config.list_physical_devices("CPU")[0]
        try:
            tf.config.set_logical_device_configuration(
                cpu, [tf.config.LogicalDeviceConfiguration()] * logical_devices
            )
        except RuntimeError:
            # TensorFlow runs already; that is fine if it has the devices.
            present = len(tf.config.list_logical_devices("CPU"))
            if present < logical_devices:
                raise RuntimeError(
                    f"expected {logical_devices} logical CPU devices, received a process in which "
                    f"TensorFlow runs already with {present}"
                ) from None
        devices = [f"CPU:{number}" for number in range(logical_devices)]
    # The default cross-device operations crash in fit() with steps_per_execution > 1
    # (keras #19246).
    return tf.distribute.MirroredStrategy(
        devices, cross_device_ops=tf.distribute.HierarchicalCopyAllReduce()
    )


def start_devices() -> None:
    """Starts TensorFlow's devices, which it would otherwise do with the first tensor."""
    tf.config.list_logical_devices()
