/* Versions of one key: two or three submissions, of versions 1 and 2 (-DTHREE: and of 1 once more; -DAGAIN: and of 2 once
 * more; -DHIGHER: and of 3), a worker, and what else happens to tasks. A submission of a version
 *   reads the record of the key, and the task that it names, and chooses its run: it is refused if the record names a higher
 *   version, and has its answer if the task of its own is alive or COMPLETED; stores the task, whose id says version and run;
 *   ends the task that the record still names as the one before; writes the record, if that names less and is as it was
 *   read; and ends the task that the record named until then, if that still waits. Then it is accepted.
 * A worker asks before its claim: a task above the record is written into it, one below is ended. Anybody may die between any
 * two steps, a task may fail, and one that ended may be replayed (-DREPLAY) or purged.
 *
 * Mutants: -DRECORDFIRST (names the task before it is stored) -DBLIND (writes the record without comparing) -DNOADMISSION
 * (the worker does not ask) -DNOADOPT (the worker goes on with a task above the record without writing it) -DONERUN (a
 * version that failed is stored under the id that it had) -DNOFINISH (nobody ends what the record names as the one before).
 */
#define RUNS 3
#define VERSIONS 4             /* 0 is none */
#define AT(v, r) ((v) * RUNS + (r))
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef ENDS
#define ENDS 1                 /* how many tasks may fail, and how many may be purged */
#endif
mtype = { NOT_THERE, WAITING, RUNNING, COMPLETED, FAILED, SUPERSEDED };

/* The record: which version and run it names, and which it named before. */
byte newest = 0, newest_run = 0, former = 0, former_run = 0;
/* The tasks, by version and run. */
mtype task[12] = NOT_THERE;
/* How often each of them began to wait. A message tells of one time, and a claim by it counts for no later one: a replay
 * begins another epoch, and a task is purged long after its last message. */
byte epoch[12];

/* What only the checks know. */
byte accepted = 0;             /* the highest version that a submission was told to be accepted */
byte begun = 0;                /* the highest version that began */
byte ends[VERSIONS];           /* how many tasks of this version ended without success */
bool was_stored[VERSIONS];
byte crashes = 0, failures = 0, purges = 0, replays = 0;

#define ABOVE(v, r) (v > newest || (v == newest && r > newest_run))
#define BELOW(v, r) (v < newest || (v == newest && r < newest_run))
#define IS_LIVE_OR_DONE(at) (task[at] == WAITING || task[at] == RUNNING || task[at] == COMPLETED)
#define HAS(v) (IS_LIVE_OR_DONE(AT(v, 0)) || IS_LIVE_OR_DONE(AT(v, 1)) || IS_LIVE_OR_DONE(AT(v, 2)) || purges > 0)
#define CRASH crashes < CRASHES -> crashes++

inline supersede(v, r) {
  if
  :: task[AT(v, r)] == WAITING ->
     assert(was_stored[newest]); /* by one that there is, or was */
     task[AT(v, r)] = SUPERSEDED; ends[v]++
  :: else
  fi
}

/* Names a task in the record. */
inline name(v, r) {
  former = newest; former_run = newest_run; newest = v; newest_run = r
}

/* Ends what the record names as the task before; its submitter may have died. */
inline finish() {
#ifndef NOFINISH
  if :: former != 0 -> supersede(former, former_run) :: else fi
#else
  skip
#endif
}

proctype Submission(byte version) {
  byte mine, before, before_run, ends_before;
  ends_before = ends[version];
  /* The record, and then the task that it names: two reads. */
  atomic { before = newest; before_run = newest_run };
  atomic {
    if
    :: before > version -> goto over
    :: before == version && (task[AT(version, before_run)] == COMPLETED || task[AT(version, before_run)] == WAITING
         || task[AT(version, before_run)] == RUNNING) -> before = 0; goto repeated
    :: before == version && (task[AT(version, before_run)] == FAILED || task[AT(version, before_run)] == NOT_THERE
         || task[AT(version, before_run)] == SUPERSEDED) ->
#ifdef ONERUN
       mine = before_run
#else
       if :: before_run + 1 < RUNS -> mine = before_run + 1 :: else -> goto over fi /* as far as this world goes */
#endif
    :: before < version -> mine = 0
    fi
  };
  if :: atomic { CRASH; goto over } :: skip fi;
#ifdef RECORDFIRST
  atomic { if :: ABOVE(version, mine) -> name(version, mine) :: else fi };
  if :: atomic { CRASH; goto over } :: skip fi;
#endif
  atomic {
    if :: task[AT(version, mine)] == NOT_THERE -> task[AT(version, mine)] = WAITING; epoch[AT(version, mine)]++; was_stored[version] = true :: else fi
  };
  if :: atomic { CRASH; goto over } :: skip fi;
reads:
  atomic { before = newest; before_run = newest_run; if :: BELOW(version, mine) -> skip :: else -> finish() fi };
  if :: atomic { CRASH; goto over } :: skip fi;
  atomic {
    if
#ifdef BLIND
    :: true -> before = newest; before_run = newest_run; name(version, mine)
#else
    :: before != newest || before_run != newest_run -> goto reads
    :: else ->
       if
       :: ABOVE(version, mine) -> name(version, mine)
       :: BELOW(version, mine) -> goto too_late
       :: else -> before = 0
       fi
#endif
    fi
  };
  if :: atomic { CRASH; goto over } :: skip fi;
  atomic { if :: before != 0 && (before != version || before_run != mine) -> supersede(before, before_run) :: else fi };
  goto is_accepted;
repeated:
  atomic { finish() };
  if :: atomic { CRASH; goto over } :: skip fi;
is_accepted:
  atomic {
    /* There is a task for it, or it ended since. */
    assert(ends[version] != ends_before || HAS(version));
    if :: version > accepted -> accepted = version :: else fi
  };
  goto over;
too_late:
  atomic { supersede(version, mine) };
over:
  skip
}

inline begins(v, r) {
#ifndef REPLAY
  /* Never two of one version. */
  assert(task[AT(v, 0)] != RUNNING && task[AT(v, 1)] != RUNNING && task[AT(v, 2)] != RUNNING);
#endif
  assert(v >= accepted); /* whenever it was that the worker asked */
  task[AT(v, r)] = RUNNING;
  if :: v > begun -> begun = v :: else fi
}

/* Asks and claims in two steps; two of them, since there are many workers. */
active [2] proctype Worker() {
  byte v, r, message;
  do
  :: atomic {
       if
       :: task[AT(1, 0)] == WAITING -> v = 1; r = 0
       :: task[AT(1, 1)] == WAITING -> v = 1; r = 1
       :: task[AT(1, 2)] == WAITING -> v = 1; r = 2
       :: task[AT(2, 0)] == WAITING -> v = 2; r = 0
       :: task[AT(2, 1)] == WAITING -> v = 2; r = 1
       :: task[AT(2, 2)] == WAITING -> v = 2; r = 2
#ifdef HIGHER
       :: task[AT(3, 0)] == WAITING -> v = 3; r = 0
       :: task[AT(3, 1)] == WAITING -> v = 3; r = 1
       :: task[AT(3, 2)] == WAITING -> v = 3; r = 2
#endif
       fi;
       message = epoch[AT(v, r)]
     };
     /* Who asks after a higher version was accepted, or began, does not begin. */
     atomic {
#ifndef NOADMISSION
       if
       :: BELOW(v, r) -> supersede(v, r); goto next
#ifndef NOADOPT
       :: ABOVE(v, r) -> finish(); name(v, r)
#endif
       :: else -> finish()
       fi;
#endif
       assert(v >= accepted && v >= begun)
     };
     atomic { if :: task[AT(v, r)] == WAITING && epoch[AT(v, r)] == message -> begins(v, r) :: else -> goto next fi };
     atomic {
       if
       :: task[AT(v, r)] = COMPLETED
       :: failures < ENDS -> failures++; task[AT(v, r)] = FAILED; ends[v]++
       fi
     };
next: atomic { v = 0; r = 0; message = 0 }
  od
}

active proctype Others() {
  byte v, r;
  do
  :: atomic {
       purges < ENDS;
       select(v: 1 .. 2); select(r: 0 .. 2);
       if
       :: task[AT(v, r)] == FAILED || task[AT(v, r)] == SUPERSEDED || task[AT(v, r)] == COMPLETED ->
          purges++; task[AT(v, r)] = NOT_THERE
       :: else
       fi; v = 0; r = 0
     }
#ifdef REPLAY
  :: atomic {
       replays < 1;
       select(v: 1 .. 2); select(r: 0 .. 2);
       if :: task[AT(v, r)] == FAILED -> replays++; task[AT(v, r)] = WAITING; epoch[AT(v, r)]++ :: else fi; v = 0; r = 0
     }
#endif
  od
}

active proctype Monitor() {
  do
  /* The record never goes back. */
  :: atomic { newest < accepted -> assert(false) }
  od
}

init { atomic { run Submission(1); run Submission(2);
#ifdef THREE
  run Submission(1);
#endif
#ifdef AGAIN
  run Submission(2);
#endif
#ifdef HIGHER
  run Submission(3);
#endif
} }

/* Nothing waits for ever, and what waits below the record is ended. */
ltl settled { [] (task[AT(1, 0)] == WAITING -> <> task[AT(1, 0)] != WAITING) }
