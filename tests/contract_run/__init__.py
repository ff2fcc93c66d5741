"""Our services on the real NPU packages as far as a CPU goes: `make contract-run`.

Nothing here has an NPU, so parts of vllm-ascend and MindSpeed run on the CPU, with a stub for
torch_npu where they import it. `python -m tests.contract_run` runs every part in a process of its
own and writes what came of it into `results.json`. What is not in these parts is not run.
"""
