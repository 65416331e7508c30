/* An open batch and two uploads of one key, of two items and of one or two, which are repeated from the beginning when they
 * broke off. An upload
 *   writes the record of the key, or finds it; stores the batch that it names, or finds it; announces in the batch how many
 *   items are there with the next one; stores that; and at the end seals the batch, where nobody has announced more.
 * Meanwhile items run and end, reporters count them, the time of the upload passes and the batch is abandoned, or somebody
 * cancels it (-DCANCEL); then a cascade cancels what is live, and for a minute looks whether more comes. An upload that finds
 * the batch cancelled has the cascade look again. Anybody may die between any two steps.
 *
 * A fault is an upload that dies, or one that sleeps for longer than that minute between an announcement and its item.
 *
 * Mutants: -DOWNBATCH (the record of the key is not asked) -DNOANNOUNCE (stores first, and announces then) -DANNOUNCEANY (in a
 * batch that is sealed, too) -DSEALANY (counts only the own items) -DSEALOVER (seals a batch that was cancelled)
 * -DABANDONANY (does not look again whether the upload went on) -DENDANY (a count does not look whether the batch waits)
 * -DNOABANDON (nobody does) -DKEEPSERIAL (a count from before the seal puts off the look after it) -DONELOOK (the cascade does
 * not wait for a minute) -DNOALARM (an upload that finds the batch cancelled tells nobody).
 */
#define ITEMS 2
#define NONE 9
#ifndef FAULTS
#define FAULTS 1
#endif
mtype = { NOT_THERE, WAITING, COMPLETED, CANCELLED, LIVE, DONE };

/* The record of the key: whose batch it names. */
byte named = NONE;

/* The batch. Every access below is one guarded write, or one read. */
mtype status = NOT_THERE;
byte announced = 0, planned = NONE, serial = 0;
bool overdue = false;      /* seal_by has passed */
bool check = false;        /* check_at is now: somebody is to count */
bool cascade = false;      /* cascade_at is set */
byte cascade_version = 0;  /* its time; who writes it has read it */

/* The items. An end is marked until it is reported, as in parent_reports.pml. */
mtype item[ITEMS] = NOT_THERE;
bool is_marked[ITEMS];

/* What only the checks know. */
byte batches = 0, ends = 0, faults = 0;
byte storing = 0;          /* uploads between an announcement and its item */
bool minute_passed = false;
bool was_hasty = false, was_sealed_late = false;

#define IS_OPEN (status == WAITING && planned == NONE)
#define FAULT faults < FAULTS -> faults++
#define NONE_LIVE (item[0] != LIVE && item[1] != LIVE)
#define LEFT (status == CANCELLED && (cascade || !NONE_LIVE))
#define MARKED (is_marked[0] || is_marked[1])
#define ENDED (item[0] == DONE || item[0] == CANCELLED) + (item[1] == DONE || item[1] == CANCELLED)

inline end_as(final) { status = final; ends++ }
inline cascade_now() { cascade = true; cascade_version = (cascade_version + 1) % 4 }
inline cancel_batch() { end_as(CANCELLED); check = false; overdue = false; cascade_now() }
inline store_item(at) { if :: item[at] == NOT_THERE -> item[at] = LIVE :: else fi }

#ifdef ANNOUNCEANY
#define MAY_ANNOUNCE status == WAITING
#else
#define MAY_ANNOUNCE IS_OPEN
#endif
#ifdef SEALANY
#define ARE_ALL true
#else
#define ARE_ALL announced == mine
#endif
#ifdef SEALOVER
#define MAY_SEAL planned == NONE
#else
#define MAY_SEAL IS_OPEN
#endif

active [2] proctype Upload() {
  byte mine, at, batch;
  if :: _pid == 0 -> mine = 2 :: _pid == 1 -> mine = 1 :: _pid == 1 -> mine = 2 fi;
begin:
  skip;
#ifdef OWNBATCH
  batch = _pid;
#else
  atomic { if :: named == NONE -> named = _pid :: else fi; batch = named };
#endif
  if :: atomic { FAULT; batch = 0; goto broken_off } :: skip fi;
  atomic {
    if
    :: status == NOT_THERE -> status = WAITING; batches++; named = batch
    :: status != NOT_THERE && batch != named -> batches++
    :: else
    fi; batch = 0
  };
  at = 0;
next:
  skip;
#ifdef NOANNOUNCE
  store_item(at);
#endif
  atomic {
    if
    :: MAY_ANNOUNCE ->
       if :: announced < at + 1 -> announced = at + 1 :: else fi;
       overdue = false; storing++
    :: else -> goto refused
    fi
  };
  if :: atomic { FAULT; storing--; at = 0; goto broken_off } :: skip fi;
#ifdef NOANNOUNCE
  storing--;
#else
  atomic { store_item(at); storing-- };
#endif
  if :: atomic { FAULT; at = 0; goto broken_off } :: skip fi;
  atomic { at++; if :: at < mine -> goto next :: else fi };
  atomic {
    if
    :: MAY_SEAL && ARE_ALL ->
       if :: status != WAITING -> was_sealed_late = true :: else fi;
       planned = mine; overdue = false; check = true;
#ifndef KEEPSERIAL
       serial = (serial + 1) % 8;
#endif
       at = 0; goto over
    :: else -> goto refused
    fi
  };
refused: /* looks again: complete without it, or with more, or just right; or cancelled, and its item may have come late */
  atomic {
    at = 0;
#ifndef NOALARM
    if :: status == CANCELLED && planned == NONE -> cascade_now() :: else fi
#endif
  };
  goto over;
broken_off:
  if :: goto begin :: skip fi; /* whoever uploads may give up as well */
over:
  skip
}

active proctype Workers() { /* in a batch that is cancelled an item would take for ever */
  do
  :: atomic { item[0] == LIVE && status == WAITING -> item[0] = DONE; is_marked[0] = true }
  :: atomic { item[1] == LIVE && status == WAITING -> item[1] = DONE; is_marked[1] = true }
  od
}

/* One will do: parent_reports.pml has more of them. What it reads of the batch, what it counts and what it writes are
 * steps; then it clears the marks that it knew of.
 */
active proctype Reporter() {
  byte read, goal, count;
  bool knew[ITEMS];
again:
  skip;
  d_step { (MARKED || (check && status == WAITING)) -> knew[0] = is_marked[0]; knew[1] = is_marked[1] };
count_again:
  skip;
  atomic { if :: status == WAITING -> read = serial; goal = planned; count = ENDED :: else -> goto clear fi };
  atomic {
    if
#ifdef ENDANY
    :: serial == read ->
#else
    :: status == WAITING && serial == read ->
#endif
       serial = (serial + 1) % 8;
       check = false;
       if :: count == goal -> end_as(COMPLETED) :: else fi
    :: else -> read = 0; goal = 0; count = 0; if :: status == WAITING -> goto count_again :: else fi
    fi;
    read = 0; goal = 0; count = 0
  };
clear:
  skip;
  d_step {
    if :: knew[0] -> is_marked[0] = false :: else fi;
    if :: knew[1] -> is_marked[1] = false :: else fi;
    knew[0] = false; knew[1] = false
  };
  goto again
}

active proctype Time() {
  do
  :: atomic { IS_OPEN && !overdue -> overdue = true }
  :: atomic { status == CANCELLED && !minute_passed && storing == 0 -> minute_passed = true }
  :: atomic { status == CANCELLED && !minute_passed && storing > 0 && FAULT; minute_passed = true }
  od
}

#ifndef NOABANDON
active proctype Abandoner() {
  do
  :: atomic { IS_OPEN && overdue -> skip };
     atomic {
       if
#ifdef ABANDONANY
       :: true -> if :: !(IS_OPEN && overdue) -> was_hasty = true :: else fi; cancel_batch()
#else
       :: IS_OPEN && overdue -> cancel_batch()
       :: else
#endif
       fi
     }
  od
}
#endif

#ifdef CANCEL
active proctype Canceller() { atomic { status == WAITING -> cancel_batch() } }
#endif

active proctype Cascade() {
  byte version;
  do
  :: atomic { cascade -> version = cascade_version };
     if
     :: atomic { item[0] == LIVE -> item[0] = CANCELLED; is_marked[0] = true }
     :: atomic { item[1] == LIVE -> item[1] = CANCELLED; is_marked[1] = true }
#ifdef ONELOOK
     :: NONE_LIVE ->
#else
     :: NONE_LIVE && minute_passed ->
#endif
        atomic { if :: version == cascade_version -> cascade = false :: else fi }
     fi;
     version = 0
  od
}

active proctype Monitor() {
  do
  :: atomic { batches > 1 -> assert(false) }
  :: atomic { ends > 1 -> assert(false) }
  :: atomic { was_hasty || was_sealed_late -> assert(false) }
  /* Nothing is stored behind the last item. */
  :: atomic { planned == 1 && item[1] != NOT_THERE -> assert(false) }
  /* A batch that ended by its items has them all. */
  :: atomic { status == COMPLETED && (item[0] != DONE || (planned == 2 && item[1] != DONE)) -> assert(false) }
  od
}

/* A batch that is there ends; and of one that is cancelled nothing stays alive. */
ltl ended { [] (status == WAITING -> <> (status == COMPLETED || status == CANCELLED)) }
ltl cleared { [] (LEFT -> <> !LEFT) }
