"""Notes: what else a reader of a result should know."""

from dataclasses import dataclass

from autotune.core.reason import Kind, Reason


class NoteKind(Kind):
    """Kind of a note: on the model, the data, the user's Trainer, the search, the losses, an estimate, a comparison."""

    RANDOM_WEIGHTS = "random_weights", "random weights"
    UNQUANTIZED = "unquantized", "the model's quantization_config is not used (--search-space lora tries four bits)"
    DECODER = "decoder", "is_decoder set: the model would look ahead otherwise"
    PAD_TOKEN = "pad_token", "pad_token_id set to {token:.0f}: {detail}"
    START_TOKEN = "start_token", "decoder_start_token_id set to {token:.0f}: the config has none"
    LABELS = "labels", "num_labels set to {labels:.0f}, as the data has"
    VOCABULARY = (
        "vocabulary",
        "{detail} {size:.0f} is not a multiple of {least:.0f}: padding it to {next:.0f} fills the Tensor Cores' tiles "
        "(model.resize_token_embeddings(pad_to_multiple_of={least:.0f}))",
    )
    WIDTH = (
        "width",
        "{detail} {size:.0f} is not a multiple of {least:.0f}: if you train from scratch, {next:.0f} is faster",
    )
    HEADS = "heads", "heads of {size:.0f} values: attention's fast kernels need a multiple of {least:.0f}, or pad them"

    SAMPLED_ROWS = "sampled_rows", "{rows:.0f} of {all_rows:.0f} rows, drawn at random, stand for the data"
    UNLABELLED_ROWS = "unlabelled_rows", "{rows:.0f} of {all_rows:.0f} rows have no label and are left out"
    SHORT_ROWS = "short_rows", "{rows:.0f} of {all_rows:.0f} rows were empty or too short and are left out"
    COLUMNS = "columns", "{detail}"

    WITHOUT_WEIGHTS = "without_weights", "random weights: the model is sent to probes without its own"
    SENT = "sent", "the model is sent to probes as it is: {detail}"
    NOT_PLAIN = "not_plain", "arguments left out of probes, as they are not plain data: {detail}"
    AS_IN_PROGRAM = "as_in_program", "arguments that are in trials as in your program: {detail}"
    NO_WORKERS = "no_workers", "no data loader workers are tried: {detail}"
    CALLBACKS = "callbacks", "your callbacks run in every probe: {detail}"
    UNGUARDED = "unguarded", "your files in trials: {detail}"
    CALLBACKS_LEFT_OUT = "callbacks_left_out", "callbacks left out of probes: {detail}"
    SLOW_CALLBACKS = "slow_callbacks", "your callbacks take {share:share} of a step"
    FAILED_IN_PROBES = "failed_in_probes", "failed in probes, and left out of them: {detail}"

    MICRO_BATCH = (
        "micro_batch",
        "your micro-batch size of {requested:.0f} became {exact:.0f}: the global batch is exact",
    )
    BATCH_FINDER = "batch_finder", "{detail} is left out: it would shrink the batch, and with it the global batch"
    KEPT = "kept", "{detail}"
    NOT_COMBINED = "not_combined", "not combined: {detail}"
    LEARNING = "learning", "changes what is learned: {detail} (--keep-numerics leaves that as it is)"
    EARLIER_TRIALS = (
        "earlier_trials",
        "{trials:trial} of an earlier search of this request (--no-history measures anew)",
    )
    UNSEEN_SIZES = "unseen_sizes", "the largest batch may need more than the peak: {detail}"
    NO_ESTIMATE = "no_estimate", "memory was not estimated, only learned from the probes: {detail}"
    RISK = "risk", "trial {trial:.0f} was tried although only {share:.0%} likely to fit (--no-risk leaves such out)"
    CRASHES = "crashes", "ruled out after {crashes:.0f} crashes and no success, first in trial {trial:.0f}: {detail}"
    NOT_LOCKED = "not_locked", "nothing can be locked in {detail}: another search may use the GPU at the same time"
    LOST_DEVICES = "lost_devices", "{lost:.0f} of {devices:.0f} devices were lost while they read model and data"
    LOGGER = "logger", "the logger {detail} was given up; the search itself is not affected"

    BASELINE_SHOWS = "baseline_shows", "your training as it is shows {detail}: trials are compared with that"
    BASELINE_FAILS = "baseline_fails", "your own settings do not run here"
    LOSSES_NEED_MEMORY = "losses_need_memory", "{detail} needs too much memory"
    LOSSES_NEED_TIME = "losses_need_time", "{detail} takes too long"
    LOSSES_FAILED = "losses_failed", "{detail}"
    LOSSES_NOT_BEGUN = "losses_not_begun", "there was no time to train in fp32"
    LOSSES_NOT_POSSIBLE = "losses_not_possible", "nothing else fits"
    LOSSES_ADDED_UP = (
        "losses_added_up",
        "with this model the Trainer's losses and gradients are added up over accumulated micro-steps instead of averaged; "
        "the losses compared are averages",
    )

    GPU_MEMORY = "gpu_memory", "of several memory sizes the one of {gigabytes:.0f} GB was taken: {detail}"
    CONTEXT = "context", "context of {context_bytes:bytes} assumed: none was measured on this device"
    ALL_LAYERS = "all_layers", "traced with all its layers: {detail}"
    NOT_COUNTED = "not_counted", "operations not counted: {detail}"
    STATES = "states", "states of {detail} are assumed to be AdamW's: its steps cannot be traced without storage"
    ALLOCATED = "allocated", "bytes allocated: what the libraries themselves take is not counted"
    WORKSPACES = "workspaces", "kernels' own workspaces beyond cuBLAS's are not counted"
    CACHED = "cached", "cached: held by torch's allocator beyond what is allocated, until it is forced to free it"
    ONE_RANK = (
        "one_rank",
        "peaks are of one rank; NCCL's buffers are assumed ({nccl_bytes:bytes}); not counted: what the allocator keeps apart "
        "for the streams of communication, and other processes",
    )
    LONGEST = "longest", "all samples as long as the longest, masks as with padding"

    PROMISES_KEPT = (
        "promises_kept",
        "earlier promises on this device: {runs:real training} ran at {least:.0%} to {most:.0%} of them",
    )
    REAL_RUN = "real_run", "{detail}"
    SUBSTITUTE = "substitute", "{detail}"

    OTHER_TASK = "other_task", "another task than the guides': {detail}"
    OTHER_MACHINE = "other_machine", "another machine or versions than the search's: {detail}"
    FEW_ROUNDS = "few_rounds", "only {rounds:round}: the intervals are those of the steps, not of rounds"
    ENDED_EARLY = "ended_early", "ended after {rounds:.0f} of {planned:.0f} rounds"
    NOT_PROVEN = "not_proven", "the promise is not proven: the search measured too few pairs"
    LARGEST_BATCH = "largest_batch", "the promised peak is of the largest batch, which this run may not have had"


@dataclass(frozen=True)
class Note(Reason):
    """A note. detail: names, another program's message, or what is noted of the data's columns."""

    kind: NoteKind
