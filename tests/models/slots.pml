/* The slots of a concurrency limit: a record with the claims that hold one, and two tasks that want to run. An attempt
 *   acquires a slot for its claim where fewer than the limit hold one, until a time; claims the task, which is refused after
 *   that time; runs and settles; and gives the slot back by the id of its claim.
 * It may wait between the two for something else, and then it takes its slot anew; and it may never hear what came of its claim,
 * which is made later or not at all, so that it gives nothing back.
 * It may die between any two steps, or lose its lease to the reaper, which gives the slot back as well. Whatever is left is
 * found by the reconciler: it looks at a holder only when its time has been over for so long that every clock knows, reads the
 * task, and takes the slot away if the task does not run under that claim and the slot was not taken anew meanwhile. Who finds no slot is put off, and comes again when a
 * slot is given back or its own time has come.
 *
 * Mutants: -DNOUNTIL (the claim does not look at the time) -DNOGRACE (the reconciler takes its own clock for that of the claim)
 * -DNOLOOK (it does not look at the task) -DRELEASEFIRST (the slot is given back before the attempt is settled) -DPULLBYTASK (it
 * is given back by the id of the task) -DPULLANEW (the reconciler takes away what was taken anew) -DGIVEBACKUNSURE (a slot is given
 * back though nobody knows what came of the claim) -DNORECONCILE -DNODUE (who is put off comes only when a slot is given back).
 */
#define TASKS 2
#define ATTEMPTS 2
#define LIMIT 1
#define NOBODY 9
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef LOSSES
#define LOSSES 1
#endif
#ifndef RENEWALS
#define RENEWALS 1
#endif
#ifndef UNSURE
#define UNSURE 1
#endif
#define RETRIES 1

mtype = { queued, running, done };

/* The tasks, and the record: which claims hold a slot, and of which task. A claim's id is the number of its process. */
mtype status[TASKS] = queued;
byte run_by[TASKS] = NOBODY;
bool waits[TASKS];
bool holds[ATTEMPTS];
byte task_of[ATTEMPTS];

/* 0: the time of the claim has not come; 1: on some clocks it has; 2: on all. */
byte over[ATTEMPTS];

/* What only the checks know. No id of a claim is used twice: one is fresh again when nobody speaks of it any more. */
bool is_dead[ATTEMPTS], is_claiming[ATTEMPTS];
byte reaped = NOBODY, looked_at = NOBODY;
byte crashes = 0, losses = 0, retries = 0, renewals = 0, unsure = 0;

/* How often the slot was taken anew for the claim, and what the reconciler saw of that; the claims that are still under way. */
byte anew[ATTEMPTS], seen = 0;
bool is_under_way[ATTEMPTS];

#define CRASH crashes < CRASHES -> crashes++
#define HOLDERS (holds[0] + holds[1])
#define RUNNING ((status[0] == running) + (status[1] == running))
#define RUNS(claim) (run_by[0] == claim || run_by[1] == claim)
#define IS_FRESH(claim) (!holds[claim] && !RUNS(claim) && reaped != claim && looked_at != claim && \
  !is_under_way[claim])
#define COMES(task) (status[task] == queued && !waits[task])

inline wake() {
  if
  :: waits[0] -> waits[0] = false
  :: !waits[0] && waits[1] -> waits[1] = false
  :: else -> skip
  fi
}

#ifdef PULLBYTASK
#define PULL(claim) d_step { \
  if :: task_of[0] == task_of[claim] -> holds[0] = false :: else fi; \
  if :: task_of[1] == task_of[claim] -> holds[1] = false :: else fi }
#else
#define PULL(claim) holds[claim] = false
#endif
#ifdef NOUNTIL
#define IN_TIME(claim) true
#else
#define IN_TIME(claim) over[claim] < 2
#endif
#define MAY_CLAIM IN_TIME(me)

active [ATTEMPTS] proctype Attempt() {
  byte me, task;
  me = _pid;
again:
  atomic {
    IS_FRESH(me) && (COMES(0) || COMES(1)) ->
    if :: COMES(0) -> task = 0 :: COMES(1) -> task = 1 fi;
    over[me] = 0; anew[me] = 0; is_dead[me] = false; task_of[me] = task
  };
  atomic {
    if
    :: HOLDERS < LIMIT -> holds[me] = true; is_claiming[me] = true
    :: else -> goto put_off
    fi
  };
  if :: atomic { CRASH; is_dead[me] = true; is_claiming[me] = false; goto again } :: skip fi;
  atomic {
    if
    :: renewals < RENEWALS ->
      renewals++;
      if
      :: holds[me] || HOLDERS < LIMIT -> holds[me] = true; over[me] = 0; anew[me]++
      :: else -> is_claiming[me] = false; goto put_off
      fi
    :: skip
    fi
  };
  atomic {
    is_claiming[me] = false;
    if
    :: unsure < UNSURE -> unsure++; is_under_way[me] = true; is_dead[me] = true; goto not_known
    :: status[task] == queued && MAY_CLAIM -> status[task] = running; run_by[task] = me
    :: status[task] != queued || over[me] > 0 -> goto give_back
    fi
  };
  if :: atomic { CRASH; is_dead[me] = true; goto again } :: skip fi;
#ifdef RELEASEFIRST
  PULL(me);
#endif
  atomic {
    if
    :: run_by[task] == me -> status[task] = done; run_by[task] = NOBODY
    :: run_by[task] == me && retries < RETRIES -> retries++; status[task] = queued; run_by[task] = NOBODY
    :: run_by[task] != me -> skip /* its lease was lost */
    fi
  };
  if :: atomic { CRASH; is_dead[me] = true; goto again } :: skip fi;
give_back:
  skip;
  PULL(me);
  if :: atomic { CRASH; is_dead[me] = true; goto again } :: skip fi;
  atomic { wake() };
  goto again;
not_known:
#ifdef GIVEBACKUNSURE
  PULL(me);
#endif
  goto again;
put_off:
  if :: atomic { CRASH; goto again } :: skip fi;
  atomic { if :: status[task] == queued -> waits[task] = true :: else -> skip fi; goto again }
}

/* A claim whose sender does not wait for the answer is made later, or refused. */
#define ARRIVES(claim) atomic { is_under_way[claim] -> is_under_way[claim] = false; \
  if \
  :: status[task_of[claim]] == queued && IN_TIME(claim) -> status[task_of[claim]] = running; run_by[task_of[claim]] = claim \
  :: status[task_of[claim]] != queued || over[claim] > 0 -> skip \
  fi }

active proctype Late() { do :: ARRIVES(0) :: ARRIVES(1) od }

/* Takes a task from a dead attempt, or from one that did not renew its lease in time. */
#define IS_LOST(task) (status[task] == running && (is_dead[run_by[task]] || losses < LOSSES))
#define REAP(task) \
  if :: is_dead[run_by[task]] -> skip :: else -> losses++ fi; \
  reaped = run_by[task]; run_by[task] = NOBODY; status[task] = queued

active proctype Reaper() {
again:
  atomic {
    IS_LOST(0) || IS_LOST(1) ->
    if :: IS_LOST(0) -> REAP(0) :: IS_LOST(1) -> REAP(1) fi
  };
  if :: atomic { CRASH; reaped = NOBODY; goto again } :: skip fi;
  PULL(reaped);
  atomic { reaped = NOBODY; wake() };
  goto again
}

#ifndef NORECONCILE
#ifdef NOGRACE
#define IS_OVER(claim) (holds[claim] && over[claim] >= 1)
#else
#define IS_OVER(claim) (holds[claim] && over[claim] == 2)
#endif
active proctype Reconciler() {
again:
  atomic {
    looked_at = NOBODY; IS_OVER(0) || IS_OVER(1) ->
    if :: IS_OVER(0) -> looked_at = 0 :: IS_OVER(1) -> looked_at = 1 fi;
    seen = anew[looked_at]
  };
#ifndef NOLOOK
  atomic { if :: run_by[task_of[looked_at]] == looked_at -> goto again :: else -> skip fi };
#endif
  if :: atomic { CRASH; goto again } :: skip fi;
#ifdef PULLANEW
  PULL(looked_at);
#else
  atomic { if :: anew[looked_at] == seen -> PULL(looked_at) :: else -> skip fi };
#endif
  atomic { wake() };
  goto again
}
#endif

/* With LIVENESS no clock is so fast that it is over before each claim. */
#ifdef LIVENESS
#define PASSES(claim) (holds[claim] && !is_claiming[claim])
#else
#define PASSES(claim) holds[claim]
#endif
active [ATTEMPTS] proctype Time() {
  byte claim;
  claim = _pid % ATTEMPTS;
  do :: atomic { PASSES(claim) && over[claim] < 2 -> over[claim]++ } od
}

#ifndef NODUE
active proctype Due() { do :: atomic { waits[0] -> waits[0] = false } :: atomic { waits[1] -> waits[1] = false } od }
#endif

/* Who runs holds a slot, so that never more run than there are. */
active proctype Monitor() {
  do
  :: atomic { RUNNING > LIMIT -> assert(false) }
  :: atomic { status[0] == running && !holds[run_by[0]] -> assert(false) }
  :: atomic { status[1] == running && !holds[run_by[1]] -> assert(false) }
  od
}

/* Every task is done in the end. */
ltl ended { <> (status[0] == done && status[1] == done) }
