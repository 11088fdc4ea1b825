"""What a pass through a network costs, as a number that no machine or clock changes."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from btcp_tf.data import named_inputs


def multiply_adds(
    model: keras.layers.Layer, shape: Sequence[int | None], dtype: str, *, size: int = 64
) -> int:
    """Multiply-adds of one input on its way through a model.

    Products of matrices, `einsum` and convolutions are counted, where the graph of one inference
    pass has them; those in a loop (recurrent layers, `map_fn`) as often as it turns. Of branches
    the most costly counts. What is added, compared, sorted, pooled or looked up without products is
    not counted: in networks it is little. Neither are cuDNN's LSTM and GRU, which Keras takes where
    TensorFlow sees a GPU. A loop whose number of turns depends on the input counts once, and so
    does an axis whose length depends on it.

    TensorFlow's own profiler is not used: it leaves out `einsum`, of which attention consists, and
    loops, and it prints.

    Args:
      model: A Keras model or layer of one input.
      shape: Shape of one input, without the axis of rows.
      dtype: Type of the input.
      size: Taken for the length of an axis where `shape` has None.

    Returns:
      At least 0. Layers of sums alone, such as looks, have 0.

    Raises:
      ValueError: If `size` is below 1.

    >>> multiply_adds(keras.layers.Dense(10), (64,), "float32")
    640
    """
    if size < 1:
        raise ValueError(f"size: expected at least 1, received {size}; give the length of an axis")
    return of_call(model, (shape, dtype), size=size)


def of_call(model: keras.layers.Layer, inputs: Any, *, size: int = 64) -> int:
    """`multiply_adds` of a model that may have several inputs.

    Args:
      model: A Keras model or layer.
      inputs: (shape, type) of one input, without the axis of rows; of several by name.
      size: Taken for the length of an axis where a shape has None.
    """

    def spec(one: tuple[Sequence[int | None], str]) -> tf.TensorSpec:
        shape, dtype = one
        return tf.TensorSpec([1, *(size if side is None else side for side in shape)], dtype)

    function = tf.function(lambda inputs: model(inputs, training=False), autograph=False)
    return _of_graph(function.get_concrete_function(named_inputs.each(spec, inputs)).graph)


def _of_graph(graph: Any) -> int:
    # Without what leads to no output: layers leave trial steps of theirs behind.
    waiting = [tensor.op for tensor in graph.outputs]
    needed = set()
    while waiting:
        operation = waiting.pop()
        if operation not in needed:
            needed.add(operation)
            waiting += [tensor.op for tensor in operation.inputs]
    return sum(_of_operation(operation) for operation in needed)


def _of_operation(operation: Any) -> int:
    if count := _PRODUCTS.get(operation.type):
        return count(operation)
    if operation.type in ("While", "StatelessWhile"):
        return _turns(operation) * _of_function(operation, operation.get_attr("body"))
    if operation.type in ("If", "StatelessIf"):
        branches = [operation.get_attr("then_branch"), operation.get_attr("else_branch")]
    elif operation.type in ("Case", "StatelessCase"):
        branches = operation.get_attr("branches")
    elif operation.type in ("PartitionedCall", "StatefulPartitionedCall"):
        branches = [operation.get_attr("f")]
    else:
        return 0
    return max(_of_function(operation, branch) for branch in branches)


def _of_function(operation: Any, function: Any) -> int:
    # Public parts of TensorFlow give the text of a graph's functions alone, without the objects.
    return _of_graph(operation.graph._get_function(function.name).graph)


def _turns(loop: Any) -> int:
    """How often a loop of `tf.while_loop` turns at most; 1 where its graph does not say so."""
    limit = loop.inputs[1]
    if limit.op.type == "Max":  # Of the lengths of sequences.
        limit = limit.op.inputs[0]
    turns = tf.get_static_value(limit)
    return int(turns.max()) if turns is not None and turns.max() >= 0 else 1


def _numbers(tensor: Any) -> int:
    """How many numbers are in a tensor; axes of unknown length count as 1."""
    return math.prod(_sides(tensor))


def _sides(tensor: Any) -> list[int]:
    return [side or 1 for side in tensor.shape] if tensor.shape.rank else []


def _matmul(operation: Any) -> int:
    name = "transpose_a" if operation.type == "MatMul" else "adj_x"
    inner = _sides(operation.inputs[0])[-2 if operation.get_attr(name) else -1]
    return _numbers(operation.outputs[0]) * inner


def _einsum(operation: Any) -> int:
    if len(operation.inputs) < 2:
        return 0
    terms, result = operation.get_attr("equation").decode().replace(" ", "").split("->")
    summed: dict[str, int] = {}
    for term, tensor in zip(terms.split(","), operation.inputs, strict=True):
        sides = _sides(tensor)
        # "..." stands in the result, too, with as many axes as are not named.
        before, _, after = term.partition("...")
        named = [*zip(before, sides, strict=False)]
        named += zip(reversed(after), reversed(sides), strict=False)
        summed |= {label: side for label, side in named if label not in result}
    return _numbers(operation.outputs[0]) * math.prod(summed.values())


def _convolution(operation: Any) -> int:
    # The filter's last axis is that of the outputs.
    return _numbers(operation.outputs[0]) * math.prod(_sides(operation.inputs[1])[:-1])


def _depthwise(operation: Any) -> int:
    return _numbers(operation.outputs[0]) * math.prod(_sides(operation.inputs[1])[:-2])


def _transposed(operation: Any) -> int:
    # Each input number goes to all places of the filter; the filter's last axis is that of inputs.
    return _numbers(operation.inputs[2]) * math.prod(_sides(operation.inputs[1])[:-1])


_PRODUCTS: dict[str, Callable[[Any], int]] = {
    "MatMul": _matmul,
    "BatchMatMul": _matmul,
    "BatchMatMulV2": _matmul,
    "BatchMatMulV3": _matmul,
    "Einsum": _einsum,
    "Conv2D": _convolution,
    "Conv3D": _convolution,
    "DepthwiseConv2dNative": _depthwise,
    "Conv2DBackpropInput": _transposed,
    "Conv3DBackpropInputV2": _transposed,
}
