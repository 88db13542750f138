"""`nvidia-smi` for virtual GPUs: the command that ranks, and the programs they start, find on their PATH.

In: the fake NVML (shim/nvml*.c), asked through ctypes. Out: the texts and exit codes of NVIDIA's tool; N/A for whatever
NVML does not answer. It starts with every call, so it imports no more of the standard library than it needs.

    tool              one call: chooses GPUs and prints
    virtual_gpus      NVML's answers as Python values
    command_line      options -> a request, or an error in the tool's own words
    gpu_fields        --query-gpu, --query-compute-apps, --query-supported-clocks
    summary_table     the table without options, -L, --version
    device_report     -q, as text and as XML
    links             topo -m, nvlink --status
"""
