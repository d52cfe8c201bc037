"""Small files in each format, written for these tests; and how to compare traces."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np

from brim import traces
from brim.core.trace import Trace
from brim.traces.report import ReadReport

SACCT = """\
JobIDRaw|User|Account|Partition|QOS|Submit|Start|End|Timelimit|State|ReqTRES|AllocTRES|Suspended|NodeList
101|ana|vision|gpu|normal|2026-05-01T08:00:00|2026-05-01T08:00:10|2026-05-01T09:00:10|02:00:00|COMPLETED|\
billing=8,cpu=32,gres/gpu:a100=4,gres/gpu=4,mem=120G,node=1|billing=8,cpu=32,gres/gpu:a100=4,gres/gpu=4,mem=120G,node=1\
|00:10:00|n1
101.batch||vision|||2026-05-01T08:00:10|2026-05-01T08:00:10|2026-05-01T09:00:10||COMPLETED||cpu=32,mem=120G,node=1||n1
102|bob|speech|gpu|normal|2026-05-01T08:00:05|2026-05-01T08:01:00|2026-05-01T08:01:00|UNLIMITED|CANCELLED by 1000|\
cpu=4,gres/gpu=1,mem=4000M,node=1||00:00:00|None assigned
103|bob|speech|cpu|normal|2026-05-01T08:00:06|2026-05-01T08:01:00|2026-05-01T08:02:00|1-00:00:00|FAILED|\
cpu=4,mem=4G,node=1|cpu=4,mem=4G,node=1|00:00:00|n2
104|cy|vision|gpu|normal|2026-05-01T08:00:07|2026-05-01T08:05:00|2026-05-01T08:15:00|Partition_Limit|PREEMPTED|\
cpu=3,gres/gpu=2,mem=5000M,node=1|cpu=3,gres/gpu=2,mem=5000M,node=1||n3
104|cy|vision|gpu|normal|2026-05-01T08:15:01|2026-05-01T08:20:00|2026-05-01T08:40:00|Partition_Limit|COMPLETED|\
cpu=3,gres/gpu=2,mem=5000M,node=1|cpu=3,gres/gpu=2,mem=5000M,node=1||n4
105|ana|vision|gpu|normal|2026-05-01T08:00:08|2026-05-01T08:30:00|Unknown|12:00:00|RUNNING|\
cpu=4,gres/gpu=1,mem=4G,node=1|cpu=4,gres/gpu=1,mem=4G,node=1||n5
106|ana|vision|gpu|normal|2026-05-01T08:00:09|Unknown|Unknown|12:00:00|PENDING|cpu=4,gres/gpu=1,mem=4G,node=1|||None
107_4|ana|vision|gpu|normal|2026-05-01T08:00:09|2026-05-01T08:00:09|2026-05-01T08:00:09|30:00|OUT_OF_MEMORY|\
cpu=4,gres/gpu=1,mem=4G,node=1|cpu=4,gres/gpu:t4=1,mem=4G,node=1||n6
"""
PHILLY = """\
[{"status": "Pass", "vc": "vc1", "jobid": "app_1", "user": "ana", "submitted_time": "2017-10-07 01:00:00",
  "attempts": [
   {"start_time": "2017-10-07 01:00:30", "end_time": "2017-10-07 01:01:30",
    "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}]},
   {"start_time": "2017-10-07 01:02:00", "end_time": "2017-10-07 02:02:00",
    "detail": [{"ip": "m1", "gpus": ["gpu0"]}, {"ip": "m2", "gpus": ["gpu0"]}]}]},
 {"status": "Killed", "vc": "vc1", "jobid": "app_2", "user": "bob", "submitted_time": "2017-10-07 01:10:00",
  "attempts": []},
 {"status": "Failed", "vc": "vc2", "jobid": "app_3", "user": "bob", "submitted_time": "2017-10-07 00:50:00",
  "attempts": [{"start_time": null, "end_time": "None", "detail": [{"ip": "m1", "gpus": ["gpu0"]}]},
               {"start_time": "2017-10-07 00:51:00", "end_time": "2017-10-07 00:51:00",
                "detail": [{"ip": "m1", "gpus": ["gpu0"]}]}]},
 {"status": "Pass", "vc": "vc2", "jobid": "app_4", "user": "bob", "submitted_time": "2017-10-07 00:50:00",
  "attempts": [{"start_time": "2017-10-07 00:51:00", "end_time": "None",
                "detail": [{"ip": "m1", "gpus": ["gpu0"]}]}]}]
"""
PHILLY_CSV = """\
timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:00:00,60.0,1,60.0,vc1
2017-10-09 06:00:00,7200.0,8,57600.0,vc2
2017-10-09 07:00:00,60.0,1,60.0,vc1
"""
HELIOS = """\
job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
12,ana,vc1,1,3,1,COMPLETED,2020-06-09 18:00:00,2020-06-09 18:00:05,2020-06-09 19:00:05,3600,5
13,bob,vc2,4,10,1,TIMEOUT,2020-06-09 18:00:01,2020-06-09 18:00:01,2020-06-09 18:04:01,240,0
14,bob,vc2,0,16,1,FAILED,2020-06-09 18:00:02,2020-06-09 18:00:02,2020-06-09 18:04:01,239,0
15,bob,vc2,1,16,1,CANCELLED,2020-06-09 18:00:03,None,None,0,0
"""
SEREN = """\
job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time
1,u1,1,8,128,SFT,FAILED,2023-03-01 08:00:00+08:00,2023-03-01 08:00:30+08:00,2023-03-01 08:02:30+08:00,120,30,960.0
2,u1,1,0,128,Other,FAILED,2023-03-01 08:00:00+08:00,2023-03-01 08:00:30+08:00,2023-03-01 08:02:30+08:00,120,30,0.0
"""
KALOS = """\
job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,shared_mem_per_pod,type,state,submit_time,start_time,end_time,\
fail_time,stop_time,duration,queue,gpu_time
dlc1,u7,2,16,240,1000,100.0,Pretrain,NODE_FAIL,2023-05-17 11:00:00+00:00,2023-05-17 11:00:10+00:00,\
2023-05-17 11:00:20+00:00,2023-05-17 11:00:20+00:00,,20,10.0,320.0
"""
ITP = """\
job_id,submission_time,duration,num_gpu
aa-1,1932025,2429,64
aa-2,1932000,60,1
"""
ITP_195 = """\
job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration
aa-1,3715485,3249,bert,3716178,32,1,1075
aa-2,3715400,3249,vgg,3716178,64,8,75
"""
OPENB = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
pod-1,12000,16384,8,1000,,LS,Running,0,12537496,5
pod-2,6000,12288,1,460,V100M16|V100M32,BE,Succeeded,10,50,10
pod-3,6000,12288,1,460,T4,BE,Failed,11,50,12
pod-4,6000,12288,1,460,,BE,Pending,11,50,
pod-5,6000,12288,0,0,,BE,Succeeded,11,50,12
"""
POLLUX = """\
name,time,application,num_replicas,batch_size
cifar10-0,107,cifar10,6,2048
ncf-1,100,ncf,1,32768
"""
GAVEL = """\
ResNet-18 (batch size 128)\tpython3 main.py\timage\t--num_steps\t1\t925982\t4\t1\t-1.000000\t0
LM (batch size 10)\tpython3 lm.py\tlm\t--steps\t1\t44334\t2\t1\t-1.000000\t12.5
"""
SHOCKWAVE = """\
LM (batch size 10)\tpython3 main.py\tlm\t--steps\t1\t134583\t1\tgns\t1\t-1.000000\t1418\t0
ResNet-18 (batch size 32)\tpython3 main.py\timage\t--num_steps\t1\t143450\t2\taccordion\t1\t-1.000000\t3338\t55
"""
SWF = """\
; Version: 2.2
; UnixStartTime: 1000000000
  1  0  5  100 4 -1 -1 4 200 -1 1 3 1 7 -1 -1 -1 -1
  2 10 -1   60 8 -1 -1 -1 -1 2048 5 4 1 -1 -1 -1 1 30
  3 10 -1   -1 8 -1 -1 8 -1 -1 5 4 1 -1 -1 -1 -1 -1
  4 20 -1   60 0 -1 -1 -1 -1 -1 1 4 1 -1 -1 -1 -1 -1
  5 20 -1   60 1 -1 -1 1 -1 -1 3 4 1 -1 -1 -1 -1 -1
  6 20 -1   60 1 -1 -1 1 -1 -1 0 4 1 -1 -1 -1 3 5
"""
OWN = """\
job_id,submit_ms,gpus,run_ms,user,status,after
a,0,1,60000,ana,completed,
b,1000,2,,bob,,a
"""
OWN_ASKS = """\
job_id,submit_ms,gpus,run_ms,priority,job_class,relative_deadline_ms,size_list
a,0,1,60000,-5,padding,7200000,1 2 4
b,1000,2,60000,7,urgent,,
c,2000,2,60000,,,,1  2 4
"""
EXAMPLES = {
    "sacct": ("sacct.txt", SACCT), "philly": ("cluster_job_log", PHILLY), "philly-csv": ("philly.csv", PHILLY_CSV),
    "helios": ("cluster_log.csv", HELIOS), "acme": ("trace_seren.csv", SEREN), "acme kalos": ("trace_kalos.csv", KALOS),
    "itp": ("cluster01.csv", ITP), "itp 195": ("195job.csv", ITP_195), "openb": ("openb_pod_list.csv", OPENB),
    "pollux": ("workload-1.csv", POLLUX), "gavel": ("a.trace", GAVEL), "shockwave": ("b.trace", SHOCKWAVE),
    "swf": ("log.swf", SWF), "brim": ("own.csv", OWN), "brim asks": ("asks.csv", OWN_ASKS),
}  # fmt: skip
"""Format (and variant) -> file name, content."""

PAI = {
    "pai_job_table.csv": """\
j1,i1,ana,Terminated,1000.0,2000.0
j2,i2,bob,Failed,1100.0,1500.0
j3,i3,bob,Running,1200.0,
j4,i4,bob,Terminated,1200.0,1300.0
j5,i5,cy,Waiting,1200.0,
""",
    "pai_task_table.csv": """\
j1,ps,1.0,Terminated,1010.0,2000.0,600.0,29.296875,,CPU
j1,worker,2.0,Terminated,1020.0,2000.0,400.0,10.0,50.0,T4
j2,worker,3.0,Failed,1105.0,1500.0,600.0,30.0,250.0,V100
j3,worker,1.0,Running,1205.0,,600.0,30.0,100.0,V100
j4,ps,1.0,Terminated,1205.0,1300.0,600.0,30.0,0.0,CPU
j5,worker,1.0,Waiting,,,600.0,30.0,100.0,V100
j9,worker,1.0,Terminated,1205.0,1300.0,600.0,30.0,100.0,V100
""",
    "pai_instance_table.csv": """\
j1,worker,n1,w1,i1,Terminated,1015.0,2000.0,m1
j1,worker,n2,w2,i1,Terminated,1030.0,2000.0,m1
""",
}
"""The three tables as published: without header lines."""


def save(folder: Path, name: str, content: str | bytes) -> Path:
    """Write a file and return its path."""
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def equal(one: Trace, other: Trace, *, but: tuple[str, ...] = ()) -> bool:
    """Whether all fields but the named ones are equal."""
    return all(
        np.array_equal(getattr(one, f.name), getattr(other, f.name))
        if isinstance(getattr(one, f.name), np.ndarray)
        else getattr(one, f.name) == getattr(other, f.name)
        for f in fields(Trace)
        if f.name not in but
    )


def read(folder: Path, key: str, format_name: str | None = None) -> tuple[Trace, ReadReport]:
    """Save an example and read it."""
    return traces.read(save(folder, *EXAMPLES[key]), format_name)
