"""What images there are, how they are split and how they are fed."""

from btcp_tf.core import lazy

__getattr__, __dir__ = lazy.names(
    __name__,
    {
        "batching": "epoch_variable batches",
        "catalog": "DatasetSpec DATASETS",
        "corruptions": "CORRUPTIONS",
        "datasets": "check_name short_name load load_images",
        "folders": "some read_image files_below",
        "images": "LUMA are_image_sizes PIXELS scaled convert",
        "splits": "Split Dataset",
    },
)
