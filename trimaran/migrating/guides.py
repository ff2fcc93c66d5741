"""What the guides have users write outside of a configuration file, and the switches that they name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Replaced:
    """One word of a command line, one variable, one step."""

    theirs: str
    ours: str


LAUNCHING: tuple[Replaced, ...] = (
    Replaced(
        "`--data_path=DIR --model_path=DIR` behind a launch script",
        "`data_path=DIR model_path=DIR trimaran import verl SCRIPT`, as variables before the command; in a run `data.train=FILE data.validation=FILE model.path=DIR` behind `trimaran train run.yaml`",
    ),
    Replaced(
        "Hydra's `key=value`, `+key=value`, `++key=value`, `~key` behind `python3 -m verl.trainer.main_ppo`",
        "the same words behind `trimaran import verl FILE`; in a run `key=value` behind `trimaran train run.yaml`, for each key of ours",
    ),
    Replaced(
        "`--config-name`, `--config-path`, `DEFAULT_YAML`",
        "the path of the run's file; there is no folder of parts",
    ),
    Replaced(
        "EasyR1's `config=FILE`",
        "read by the import of a script; another one may be given behind it",
    ),
    Replaced(
        "`NNODES`, `trainer.nnodes`",
        "`network.subnet`, and a launcher for several hosts: `--launcher ray`, Compose or Kubernetes ([deploy.md](deploy.md))",
    ),
    Replaced(
        "`NPUS_PER_NODE`, `n_npus_per_node`, `trainer.n_gpus_per_node`",
        "nothing: devices in sight are counted. `rollout.replicas`, `rollout.tensor_parallel` and the trainer's layout say how many a run takes",
    ),
    Replaced(
        "`MASTER_ADDR`, `CURRENT_IP`",
        "nothing: each host takes its own address in `network.subnet`, and processes find one another through the store",
    ),
    Replaced(
        "`SOCKET_IFNAME`, `HCCL_SOCKET_IFNAME`, `GLOO_SOCKET_IFNAME`, `TP_SOCKET_IFNAME`",
        "nothing: the interface that has the host's address in `network.subnet`; the variables are set for the libraries",
    ),
    Replaced("`VLLM_DP_SIZE`", "nothing: `rollout.replicas`"),
    Replaced(
        "`ray start`, `ray stop --force`, `pkill -9 python`",
        "nothing: a run starts its processes and ends them. `--launcher ray` uses a Ray cluster that is there",
    ),
    Replaced(
        "`source …/set_env.sh` of CANN and ATB",
        "the same, in the shell that starts the run ([ascend.md](ascend.md))",
    ),
    Replaced(
        "`LD_PRELOAD` with jemalloc",
        "the same, where host memory grows in long runs; it is handed on to each process. `trimaran doctor` looks at it",
    ),
    Replaced(
        "`LD_PRELOAD` with `libgomp-947d5fa1.so`", "the same, where `trimaran doctor` asks for it"
    ),
    Replaced(
        "`runtime_env.yaml`",
        "variables of the shell that starts the run; each process inherits them",
    ),
    Replaced(
        "`HCCL_CONNECT_TIMEOUT`, `HCCL_EXEC_TIMEOUT`, `HCCL_BUFFSIZE`, `TASK_QUEUE_ENABLE`, `PYTORCH_NPU_ALLOC_CONF`, …",
        "the same variables; [ascend.md](ascend.md) has those that a run sets itself",
    ),
    Replaced(
        "`python geo3k.py --local_dir`, `--local_save_dir`, `--local_data`, `--local_dataset_path`",
        "`trimaran data prepare geo3k`",
    ),
    Replaced(
        "`preprocess_data.sh math_17k`, and the keys of `configs/datasets/math_17k.yaml`",
        "`trimaran data prepare`; `trimaran import mindspeed-rl math_17k.yaml` prints its words, and the [keys](#mindspeed-rls-datasets) have a table",
    ),
    Replaced(
        "`ckpt_convert_*_hf2mcore.sh`, `convert_ckpt.py --load-model-type hf --target-tensor-parallel-size …`",
        "nothing: a run reads the Hugging Face folder at any layout. `trimaran convert MODEL DIR --tensor-parallel N` makes a checkpoint, where one is wanted",
    ),
    Replaced(
        "`ckpt_convert_*_mcore2hf.sh`, the folder `mg2hf`",
        "nothing: a run ends with a Hugging Face folder. `trimaran convert RUN DIR` makes one of a checkpoint",
    ),
    Replaced(
        "`load`, `finetune: false`, `no_load_optim: false`, `ref_model_load_path` to go on with a run",
        "`trimaran train --resume RUN`; the reference is the first model all the same",
    ),
)

SWITCHES: tuple[Replaced, ...] = (
    Replaced(
        "deterministic compute (`npu_deterministic`, `use_deter_comp`, `full_determinism`)",
        "`run.deterministic: true`; the default is false",
    ),
    Replaced(
        "colocated pools: rollout and trainer in turns on the same devices (`hybrid_engine`, `use_integrated_worker`, `free_cache_engine`, off-loading between phases)",
        "`run.pools: colocated` (separate). The import leaves it separate and gives half of the devices to"
        " each pool; with the word `run.pools=colocated` behind the file all of them are given to both. One"
        " host, and `run.max_lag: 0`",
    ),
    Replaced(
        "padding-free (`use_remove_padding`, `padding_free`), dynamic batches (`use_dynamic_bsz`, `dynamic_batching`)",
        "always: micro-batches are packed up to `trainer.micro_batch_tokens` (4096), and balanced over the ranks",
    ),
    Replaced(
        "Ulysses (`ulysses_size`, `ulysses_sequence_parallel_size`, `ulysses_cp_algo`)",
        "`trainer.context_parallel` (1)",
    ),
    Replaced(
        "recomputing (`enable_gradient_checkpointing`, `recompute_granularity`)",
        "`trainer.recompute` (false)",
    ),
    Replaced(
        "off-loading of the optimizer or gradients (`offload_optimizer`, `optimizer_offload`, `swap_optimizer`)",
        "`trainer.offload: [optimizer, gradients]` (none)",
    ),
    Replaced(
        "off-loading of the reference (`ref.fsdp_config.param_offload`)",
        "`algorithm.kl.offload` (false)",
    ),
    Replaced(
        "prefix cache (`enable_prefix_caching`)",
        "`rollout.prefix_cache` (true)",
    ),
    Replaced(
        "chunked prefill (`enable_chunked_prefill`)",
        "always, and no key: vLLM's version 1 warns that without it answers may be wrong",
    ),
    Replaced(
        "eager or captured graphs (`enforce_eager`, `torchair_graph`)",
        "`rollout.eager: auto` (graphs on CUDA alone), true or false",
    ),
    Replaced(
        "tensor parallelism of the rollout (`tensor_model_parallel_size`, `infer_tensor_parallel_size`)",
        "`rollout.tensor_parallel` (1)",
    ),
    Replaced(
        "images of a prompt (`limit_images`, `limit_mm_image_per_prompt`)",
        "`rollout.limit_images` (4); `data.image_key`, `data.min_pixels` and `data.max_pixels` are the guides' own",
    ),
)
