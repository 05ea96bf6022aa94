"""Profiles name every launch, in order, also in loops."""

import itertools

import numpy as np

import fusile

LOOP = """
HloModule loop
body {
  s = (s32[], f32[100]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[100] get-tuple-element(s), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  y = f32[100] cosine(x)
  ROOT r = (s32[], f32[100]) tuple(j, y)
}
condition {
  s = (s32[], f32[100]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(37)
  ROOT c = pred[] compare(i, n), direction=LT
}
ENTRY main {
  x = f32[100] parameter(0)
  zero = s32[] constant(0)
  t = (s32[], f32[100]) tuple(zero, x)
  w = (s32[], f32[100]) while(t), condition=condition, body=body
  y = f32[100] get-tuple-element(w), index=1
  ROOT z = f32[100] sine(y)
}
"""


def test_launches_in_loops_are_counted() -> None:
    exe = fusile.compile(LOOP)
    profile = exe.profile(np.ones(100, np.float32), runs=2)
    launches = {t.kernel.ops: t.launches for t in profile.by_kernel()}
    assert launches[("cosine",)] == 37 and launches[("sine",)] == 1
    assert 0 < sum(t.seconds for t in profile.by_kernel()) <= profile.seconds * 1.001
    assert "cosine" in str(profile)


def test_traces_have_an_event_a_launch() -> None:
    exe = fusile.compile(LOOP)
    profile = exe.profile(np.ones(100, np.float32), runs=1)
    events = profile.chrome_trace()["traceEvents"]
    assert len(events) == len(profile.events)
    assert all(a["ts"] <= b["ts"] for a, b in itertools.pairwise(events))
