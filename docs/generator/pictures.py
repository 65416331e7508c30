"""The pictures of docs/concepts.md."""

from __future__ import annotations

from collections.abc import Mapping

from docs.generator.drawing import Arrow, Box, Picture, Words

LIFE = Picture(
    "The life of a task",
    "A submitted task is QUEUED, or BLOCKED until it has the turn of its stream. A claim makes it RUNNING. It "
    "ends COMPLETED, COMPLETED_WITH_ERRORS, FAILED, DEAD_LETTER or CANCELLED; or it is RETRYING until another "
    "attempt is due; or it is WAITING for sub-tasks or a signal and then QUEUED again. A replay queues what "
    "is over anew.",
    800,
    385,
    [
        Words(56, 170, "submit"),
        Box(190, 170, "QUEUED", "live"),
        Box(190, 50, "BLOCKED", "live"),
        Box(400, 170, "RUNNING", "live"),
        Box(400, 50, "WAITING", "live"),
        Box(400, 290, "RETRYING", "live"),
        Box(690, 60, "COMPLETED", "over", 190),
        Box(690, 115, "COMPLETED_WITH_ERRORS", "over", 190),
        Box(690, 175, "CANCELLED", "step", 190),
        Box(690, 240, "FAILED", "bad", 190),
        Box(690, 295, "DEAD_LETTER", "bad", 190),
        Arrow([(84, 170), (128, 170)]),
        Arrow([(56, 158), (56, 50), (128, 50)], "in a serial\nstream", (90, 24)),
        Arrow([(190, 68), (190, 150)], "its turn", (216, 108)),
        Arrow([(250, 164), (338, 164)], "claim", (294, 152)),
        Arrow([(340, 178), (252, 178)], "released", (296, 192)),
        Arrow([(410, 152), (410, 70)], "waits", (432, 120)),
        Arrow([(340, 50), (250, 152)], "it has come", (262, 82)),
        Arrow([(392, 188), (392, 270)], "may be\nrepeated", (358, 224)),
        Arrow([(412, 272), (412, 190)], "due:\nclaim", (434, 226)),
        Arrow([(460, 156), (500, 60), (593, 60)], "result", (550, 50)),
        Arrow([(460, 162), (510, 115), (593, 115)]),
        Arrow([(460, 172), (593, 175)], "asked to stop", (550, 163)),
        Arrow([(460, 180), (516, 240), (593, 240)], "for good", (556, 230)),
        Arrow([(460, 186), (496, 295), (593, 295)], "no attempt left", (546, 307)),
        Arrow([(690, 313), (690, 350), (190, 350), (190, 190)], "replay: the next generation", (430, 366)),
    ],
)

JOURNEY = Picture(
    "The journey of a task",
    "A submission writes the document into the store and is then answered with 202. Its message goes through "
    "RabbitMQ to a worker, which claims the task in the store, executes it, writes the outcome and "
    "acknowledges last. Each write has its event in the same document; the bridge publishes it to other "
    "programs.",
    760,
    380,
    [
        Box(90, 60, "your program", "step", 130),
        Box(300, 60, "submission", "step", 130),
        Box(300, 190, "the task, a document\n(MongoDB or SQLite)", "place", 190, 84),
        Box(570, 60, "the message\n(RabbitMQ)", "place", 150, 50),
        Box(650, 190, "worker", "step", 110, 84),
        Box(300, 320, "bridge", "step", 130),
        Box(570, 320, "events\n(RabbitMQ)", "place", 150, 50),
        Arrow([(155, 53), (233, 53)], "submit", (194, 40)),
        Arrow([(235, 68), (157, 68)], "202", (194, 82)),
        Arrow([(300, 78), (300, 146)], "1. store", (270, 114)),
        Arrow([(365, 60), (493, 60)], "2. dispatch", (429, 47)),
        Arrow([(620, 85), (642, 146)], "3. wakes", (664, 116)),
        Arrow([(595, 164), (397, 164)], "4. claim, with lease and token", (496, 154)),
        Arrow([(595, 192), (397, 192)], "5. progress", (496, 182)),
        Arrow([(595, 220), (397, 220)], "6. outcome; then acknowledge", (496, 210)),
        Arrow([(300, 232), (300, 300)], "7. its history", (256, 266)),
        Arrow([(365, 320), (493, 320)], "8. publish", (429, 307)),
        Arrow([(645, 320), (715, 320)], "", (0, 0)),
        Words(700, 345, "other programs"),
    ],
)

REPAIRS = Picture(
    "Who repairs what",
    "Each live task carries a time by which some process goes on with it, and a repair in every process looks "
    "for those that have passed: next_dispatch_at and the sweeper, the lease and the reaper, publish_at and "
    "the relay, the deadline, check_at and the parents, unblock_at and the streams.",
    760,
    400,
    [
        Words(120, 28, "what died"),
        Words(370, 28, "the time that the task carries"),
        Words(620, 28, "who goes on, in any process"),
        *(
            part
            for number, (died, time, repair) in enumerate(
                [
                    (
                        "API, broker or message\nbefore the claim",
                        "next_dispatch_at",
                        "sweeper\nsends the message again",
                    ),
                    ("worker with the task", "lease.expires_at", "reaper\nqueues the next attempt"),
                    ("whoever had to tell of it", "publish_at", "relay\npublishes the events"),
                    ("nobody: it takes too long", "deadline, start_by", "deadlines\nend it"),
                    ("whoever had to store or\ncount sub-tasks", "spawn_at, check_at", "parents\nstore and count them"),
                    ("whoever had to let the\nnext of a stream go", "unblock_at", "streams\nqueue it"),
                ]
            )
            for part in (
                Box(120, 70 + 60 * number, died, "bad", 200, 46),
                Arrow([(220, 70 + 60 * number), (268, 70 + 60 * number)]),
                Box(370, 70 + 60 * number, time, "place", 200, 46),
                Arrow([(470, 70 + 60 * number), (508, 70 + 60 * number)]),
                Box(620, 70 + 60 * number, repair, "over", 220, 46),
            )
        ),
    ],
)

STREAMS = Picture(
    "The two modes of a stream",
    "In the mode serial the tasks of a key run one after the other. In the mode ordered_results they run side "
    "by side, and who reads the results gets them in the order of their positions.",
    760,
    270,
    [
        Words(60, 40, "serial"),
        Box(200, 40, "0 runs", "live", 160, 30),
        Box(370, 40, "1 runs", "live", 160, 30),
        Box(540, 40, "2 runs", "live", 160, 30),
        Words(370, 75, "2 is BLOCKED until 1 has ended, whatever dies"),
        Words(60, 130, "ordered_\nresults"),
        Box(220, 120, "0 runs", "live", 200, 30),
        Box(170, 155, "1 runs", "live", 100, 30),
        Box(250, 190, "2 runs", "live", 260, 30),
        Arrow([(320, 120), (478, 120)], "result 0", (400, 110)),
        Arrow([(220, 155), (440, 155), (440, 138), (478, 138)], "1 waits for 0", (330, 143)),
        Arrow([(380, 190), (478, 190)], "result 2", (428, 180)),
        Box(560, 155, "who reads:\n0, 1, 2", "over", 150, 90),
        Words(380, 245, "time →"),
    ],
)

PARENTS = Picture(
    "A parent and its sub-tasks",
    "A parent that planned sub-tasks is WAITING, without a slot or a lease. Its sub-tasks are tasks of their "
    "own. Whoever hears that one has ended counts them and writes the count into the parent; when the policy "
    "is met, the parent is queued once and goes on.",
    760,
    300,
    [
        Box(90, 60, "parent\nRUNNING", "live", 130, 50),
        Box(310, 60, "parent WAITING\nno slot, no lease", "live", 170, 50),
        Box(590, 60, "parent goes on, once:\non_subtasks_finished", "live", 200, 50),
        Arrow([(155, 60), (223, 60)], "its plan,\none write", (188, 32)),
        Arrow([(395, 60), (488, 60)], "policy met", (441, 48)),
        Box(160, 190, "sub-task", "live", 100),
        Box(310, 190, "sub-task", "live", 100),
        Box(460, 190, "sub-task", "live", 100),
        Arrow([(280, 85), (170, 170)], "stored", (200, 122)),
        Arrow([(310, 85), (310, 170)]),
        Arrow([(340, 85), (450, 170)]),
        Box(310, 262, "each that ends is counted anew, by a guarded write", "place", 350, 34),
        Arrow([(160, 208), (220, 243)]),
        Arrow([(310, 208), (310, 243)]),
        Arrow([(460, 208), (400, 243)]),
        Arrow(
            [(485, 262), (700, 262), (700, 140), (370, 140), (370, 87)],
            "the count: done, succeeded, failed",
            (560, 127),
        ),
    ],
)

#: Each picture by the name of its file.
PICTURES: Mapping[str, Picture] = {
    "life": LIFE,
    "journey": JOURNEY,
    "repairs": REPAIRS,
    "streams": STREAMS,
    "parents": PARENTS,
}
