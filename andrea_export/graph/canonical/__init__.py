"""The canonical ONNX file: one fp32 graph that onnxruntime, TensorRT with the plugin and TensorRT without all take.

    trace ──> names ──> instantiate ──> weights, interface, function body, metadata    (export.py runs them in order)

One block is traced by ``torch.onnx.export``, then instantiated ``n_layer`` times: tracing costs the same for 2 blocks
and for 24, and every block is the same graph by construction. That the result is the torch model is not assumed from
this: ``validate`` compares every layer of every block.
"""

OPSET = 23  # the first with Attention, which is what keeps softmax(q·kᵀ)·v one node
WEIGHTS_FILE = "model.onnx.data"
# Values smaller than this stay inside the .onnx file: shapes and axes, never weights worth mapping.
EXTERNAL_THRESHOLD_BYTES = 1024
