# What the scripts share; sourced, not run. Sets $repository and the functions below.
# shellcheck shell=bash

# shellcheck disable=SC2034  # used by the scripts that source this
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Headings and advice go to standard error, so that standard output stays what a program printed.
heading() { printf '\n== %s\n' "$*" >&2; }
note() { printf '   %s\n' "$*" >&2; }

# die WHAT [WHAT TO DO...]
die() {
  printf '\n%s: %s\n' "$(basename "$0")" "$1" >&2
  shift
  local line
  for line in "$@"; do printf '   %s\n' "$line" >&2; done
  exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

# at_least MINIMUM VERSION: whether VERSION is no older.
at_least() { [[ $(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1) == "$1" ]]; }

# Whether there is an NVIDIA GPU that its driver can use.
have_gpu() { [[ -e /dev/nvidia0 ]] || { have nvidia-smi && nvidia-smi --list-gpus 2>/dev/null | grep '^GPU ' >/dev/null; }; }

# Whether scripts/build will find a CUDA compiler.
have_cuda_compiler() { [[ -n ${CUDACXX:-} ]] || have nvcc || [[ -x /usr/local/cuda/bin/nvcc ]]; }

# The comment at the top of a script is its help.
print_help() { sed -n '2,/^[^#]/ s/^# \{0,1\}//p' "$1"; }

# Jobs that fit: no more than the processors, and 1.5 GB of memory for each compiler.
job_count() {
  local processors memory_kb jobs
  processors=$(nproc 2>/dev/null || echo 1)
  memory_kb=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo 2>/dev/null || true)
  jobs=$((${memory_kb:-1500000} / 1500000))
  if ((jobs > processors)); then jobs=$processors; fi
  if ((jobs < 1)); then jobs=1; fi
  echo "$jobs"
}
