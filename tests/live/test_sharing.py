"""Jobs that share a device, with real processes."""

from __future__ import annotations

from dataclasses import replace

from brim.live.service import ClusterService
from brim.policies.presets import find_policy
from tests.live.box import Box, in_state, running, until
from tests.live.sharing import Together


def shares(service: ClusterService) -> dict[int, int]:
    """Thousandths of its devices that each attempt has."""
    return {one.job: one.share_milli for one in service.engine._controller.ledger}


def test_a_job_joins_another_on_its_device_and_leaves_again_and_no_process_of_that_one_ends(box: Box) -> None:
    policy = replace(find_policy("fifo"), place=Together(), period_ms=200)

    async def scenario(service: ClusterService) -> None:
        [first] = await box.submit(service, box.resumable("first"))
        await in_state(service, first, "running")
        second, third = await box.submit(service, box.resumable("second"), box.resumable("third"))
        await in_state(service, second, "running")
        await until(lambda: box.starts("second"), "its process")
        assert (service.job(first).devices, service.job(second).devices) == ((0,), (0,))
        assert shares(service) == {first: 500, second: 500}
        assert service.nodes()[0]["devices"][0]["jobs"] == [first, second]
        assert service.job(third).state == "pending"
        box.end("first")
        await in_state(service, first, "finished")
        await in_state(service, third, "running")
        assert service.job(third).devices == (0,)
        box.end("third")
        await in_state(service, third, "finished")
        await until(lambda: shares(service) == {second: 1000}, "the whole device")
        box.end("second")
        await in_state(service, second, "finished")
        assert [len(box.starts(name)) for name in ("first", "second", "third")] == [1, 1, 1]
        assert [service.job(job).exit_code for job in (first, second, third)] == [0, 0, 0]

    running(box, scenario, policy)


def test_jobs_that_say_what_they_use_share_a_device_where_that_saves_energy_and_memory_fits(box: Box) -> None:
    """The third fits by its use of time, and not by its memory: a V100 has 16 GB. The fourth says nothing."""
    async def scenario(service: ClusterService) -> None:
        uses = {"gpu_util_milli": 300, "gpu_mem_mib": 4_000}
        first, second = await box.submit(service, *(box.resumable(name, **uses) for name in ("first", "second")))
        for job in (first, second):
            await in_state(service, job, "running")
        assert (service.job(first).devices, service.job(second).devices) == ((0,), (0,))
        [third] = await box.submit(service, box.resumable("third", **uses | {"gpu_mem_mib": 14_000}))
        await in_state(service, third, "running")
        assert service.job(third).devices == (1,)
        [fourth] = await box.submit(service, box.resumable("fourth"))
        await until(lambda: "free" in service.explain(fourth), "why it waits: " + service.explain(fourth))
        assert shares(service) == {first: 500, second: 500, third: 1000}
        for name in ("first", "second", "third", "fourth"):
            box.end(name)
        for job in (first, second, third, fourth):
            await in_state(service, job, "finished")

    running(box, scenario, "eaco", "1x2xV100")
