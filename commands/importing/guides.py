"""What the guides have users write outside of a configuration file, and the switches that they name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Replaced:
    """One word of a command line, one variable, one step."""

    theirs: str
    ours: str


@dataclass(frozen=True, slots=True)
class Job:
    """One part of a guide's job, with what each guide has its reader type for it.

    Example: Job("data", "1", "1", "5", "5", "none: a name of the hub", "`trimaran data prepare`: 1")
    """

    name: str
    qwen25_vl: str
    qwen3_vl: str
    grpo: str
    ray_grpo: str
    easyr1: str
    ours: str


JOBS: tuple[Job, ...] = (
    Job(
        "environment",
        "49 commands, and one file edited",
        "38 commands",
        "another guide",
        "42 commands",
        "another guide",
        "`source` of CANN and of ATB, then `sh deploy/npu/install.sh ENV a2` with two variables"
        " ([ascend.md](ascend.md)); on GPUs two commands of `pip` ([install.md](install.md#nvidia)): 2 or 3",
    ),
    Job(
        "weights",
        "two runs of a converter, in another guide",
        "a download",
        "a converter, in an environment of its own",
        "a converter",
        "none: a name of the hub",
        "`hf download NAME --local-dir models/NAME`: 1",
    ),
    Job("data", "1", "1", "5", "5", "none: a name of the hub", "`trimaran data prepare`: 1"),
    Job(
        "configuration",
        "5 places in a script and a YAML file",
        "6 values in ray_start.sh, and the script",
        "5 places in a script and two YAML files",
        "3 places in a script and a YAML file",
        "a script and a YAML file, some 20 values",
        "`trimaran import SYSTEM FILE key=value … -o run.yaml`: 1",
    ),
    Job("start, on one host", "1", "2", "1", "1", "1", "`trimaran train run.yaml`: 1"),
    Job(
        "start, on more hosts",
        "1 on each, after its addresses are edited",
        "1 on each, in order, and 1",
        "1 on each, after its addresses are edited",
        "1 on each, after its addresses are edited",
        "not told",
        "`network.subnet`, and Compose, Ray or Kubernetes ([deploy.md](deploy.md))",
    ),
    Job(
        "a model that others load",
        "a converter",
        "verl's merger",
        "a converter",
        "a converter",
        "EasyR1's merger",
        "nothing: a run ends with one, and names it",
    ),
)
"""Commands that the guides' code blocks have for one host with Ubuntu, without what they call optional."""

LAUNCHING: tuple[Replaced, ...] = (
    Replaced(
        "`git clone` and `git checkout` of vLLM, vLLM-Ascend, Megatron-LM, MindSpeed, MindSpeed-RL, MindSpeed-MM, MindSpeed-LLM and verl, `cp -r megatron …`, `copy_adaptor_to_*.sh`, `verl_plugin` with `MODEL_SELECT` and `VERL_PATH`, apex",
        "`sh deploy/npu/install.sh ENV a2`: packages at fixed versions, and no file of theirs is replaced ([ascend.md](ascend.md))",
    ),
    Replaced(
        "`conda create`, `pip install torch… torch_npu…`, and again, where another package has replaced them",
        "the same script makes the environment, and checks every version before and after",
    ),
    Replaced(
        "`pip install qwen-vl-utils mathruler viztracer uvloop`",
        "nothing: images and rewards need none of them",
    ),
    Replaced(
        "`docker pull`, `docker run --privileged`, `docker commit`, `docker save`",
        "`docker run` without `--privileged` ([ascend.md](ascend.md#first-steps-on-a-host)), or an image that is built: `deploy/docker/Containerfile` with `DEVICE=npu` ([deploy.md](deploy.md))",
    ),
    Replaced(
        "`npu-smi info`, `torch_npu.npu.is_available()`, `apt-get install iproute2`",
        "`trimaran doctor run.yaml`: versions, devices, addresses, ports and tools, each with the command that mends it ([doctor.md](doctor.md))",
    ),
    Replaced(
        "code, weights and data at the same paths on every host, and Ray started in the same folder",
        "`model.path` and the data's files at the same paths, or on a disk that all hosts see; `model.source` has a host fetch a model once",
    ),
    Replaced(
        "`hf download`, `wget` of a data set",
        "the same, or the name in its place: `trimaran data prepare NAME --from OWNER/NAME`, where the hub can be reached (`pip install 'trimaran[data]'`)",
    ),
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
        "`python geo3k.py --local_dir`, `--local_save_dir`, `--local_data`, `--local_dataset_path`, or a path that is edited into it",
        "`trimaran data prepare geo3k --from FOLDER -o data/geo3k`",
    ),
    Replaced(
        "`preprocess_data.sh math_17k`, and the keys of `configs/datasets/math_17k.yaml`",
        "`trimaran data prepare`; `trimaran import mindspeed-rl math_17k.yaml` prints its words, and the [keys](#mindspeed-rls-datasets) have a table",
    ),
    Replaced(
        "`ckpt_convert_*_hf2mcore.sh`, `convert_ckpt.py --load-model-type hf --target-tensor-parallel-size … --moe-tp-extend-ep`, MindSpeed-MM's `mm-convert`, and a vision tower's checkpoint of its own (`vit_config.load`)",
        "nothing: a run reads the Hugging Face folder at any layout. `trimaran convert MODEL DIR --tensor-parallel N` makes a checkpoint, where one is wanted",
    ),
    Replaced(
        "`ckpt_convert_*_mcore2hf.sh`, the folder `mg2hf`, `python -m verl.model_merger`, EasyR1's `model_merger.py`",
        "nothing: a run ends with a Hugging Face folder. `trimaran convert RUN DIR` makes one of a checkpoint",
    ),
    Replaced(
        "`load`, `finetune: false`, `no_load_optim: false`, `ref_model_load_path` to go on with a run",
        "`trimaran train --resume RUN`; the reference is the first model all the same",
    ),
    Replaced(
        "`trainer.val_only`, to measure a model that was trained",
        "`trimaran train run.yaml validation.only=true model.path=RUN/model`",
    ),
    Replaced(
        "`tee train.log`, and `grep` in it for `perf/throughput` or `e2e_tps`",
        "`metrics.jsonl` of the run's folder has a row for each step, with these names too where `metrics: {also: [verl, mindspeed-rl]}` asks for them",
    ),
    Replaced(
        "the guides' table of tokens a second",
        "`make bench-npu`: each row is a run ([benchmarks](../benchmarks/README.md#the-guides-tables-on-npus))",
    ),
    Replaced(
        "`VLLM_USE_V1`, `VLLM_ATTENTION_BACKEND`, `USE_OPTIMIZED_MODEL`",
        "nothing: vLLM's version 1 is the only one, and chooses its attention by the device",
    ),
    Replaced(
        "`RAY_PORT`, `DASHBOARD_PORT`, Ray's dashboard and debugger",
        "nothing: [observability.md](observability.md) has what each process reports, and `logs/` of the run's folder a log of each. `trimaran serve` runs one service alone, under a debugger too",
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
