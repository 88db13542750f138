"""torch's watchdog threads poll rarely where many ranks share a processor, and as torch asks elsewhere."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from rank_runtime.build import Build

# Two threads wait for 10 ms at a time, one under the name of a watchdog, until the other has done so 100 times; then
# the watchdog is woken up for good.
PROGRAM = """
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <time.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
static int waits[2];
static int is_over;

static void *look(void *which) {
  int *own = which;
  pthread_setname_np(pthread_self(), own == waits ? "pt_nccl_watchdg" : "other");
  pthread_mutex_lock(&lock);
  while (!is_over) {
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_nsec += 10000000;
    deadline.tv_sec += deadline.tv_nsec / 1000000000;
    deadline.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&ended, &lock, &deadline);
    ++*own;
    if (waits[1] == 100) {
      is_over = 1;
      pthread_cond_broadcast(&ended);
    }
  }
  pthread_mutex_unlock(&lock);
  return NULL;
}

int main(void) {
  pthread_t threads[2];
  for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, look, &waits[i]);
  for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
  printf("%d\\n", waits[0]);
}
"""


@pytest.fixture(scope="module")
def program(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("housekeeping")
    source = folder / "program.c"
    source.write_text(PROGRAM)
    device = next(path for path in build.libraries if path.name == "libmaya_device.so")
    linked = ["-Wl,--no-as-needed", str(device), f"-Wl,-rpath,{device.parent}", "-pthread"]
    subprocess.run(["gcc", source, *linked, "-o", folder / "program"], check=True)
    return folder / "program"


def waits_of_watchdog(program: Path, ranks_per_processor: int) -> int:
    ranks = ranks_per_processor * len(os.sched_getaffinity(0))
    environment = {**os.environ, "WORLD_SIZE": str(ranks)}
    return int(subprocess.check_output([program], env=environment, timeout=60, text=True))


def test_a_watchdog_polls_rarely_where_many_ranks_share_a_processor(program: Path) -> None:
    assert waits_of_watchdog(program, 16 * 20) < 30  # five, and one more when it is told to end


def test_a_watchdog_polls_as_torch_asks_where_ranks_are_few(program: Path) -> None:
    assert waits_of_watchdog(program, 16) > 50
