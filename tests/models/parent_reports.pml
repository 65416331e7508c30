/* A parent that waits for its three sub-tasks: each one's final write marks it as not reported yet. A reporter knows of some
 * marked ends (by an event, or because they are due), then
 *   reads the parent and its serial, counts the final sub-tasks, writes the count where the parent still waits and the serial
 *   is the one that was read - serial + 1, and the end if all are final - and only then clears the marks of the ends it knew of.
 * It may die between any two steps. A sub-task that failed may be replayed and end again: its end has another number then, and
 * a mark is cleared only if the end is the one that was known. Somebody may cancel the parent.
 *
 * Mutants: -DNOGUARD (the end does not look whether the parent waits) -DNOSERIAL (an older count overwrites a newer one)
 * -DNONUMBER (clears the mark of whatever end it is) -DCLEARFIRST (clears before it counts) -DCLEARALL (clears what is marked by
 * then, not what it knew of) -DEVENTONLY (no mark: an event in the process, which can be lost).
 */
#define SUBTASKS 3
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef REPLAYS
#define REPLAYS 1
#endif

/* The documents. Every access below is one guarded write, or one read. */
bool waiting = true;
bool is_final[SUBTASKS], is_marked[SUBTASKS];
byte end_number[SUBTASKS];
byte serial = 0;

/* What only the checks know: how often the parent ended, and in which order counts were made and written. */
byte ends = 0, crashes = 0, replays = 0;
bool was_overwritten = false;

#define CRASH crashes < CRASHES -> crashes++
#define FINALS (is_final[0] + is_final[1] + is_final[2])
#define MARKED (is_marked[0] || is_marked[1] || is_marked[2])

active [SUBTASKS] proctype Subtask() {
  byte me;
  me = _pid;
  do
  :: atomic { !is_final[me] -> is_final[me] = true; end_number[me]++;
#ifdef EVENTONLY
       if :: is_marked[me] = true :: CRASH fi
#else
       is_marked[me] = true
#endif
     }
  /* Of the first one only: all are alike. */
  :: atomic { me == 0 && is_final[me] && waiting && replays < REPLAYS ->
       replays++; is_final[me] = false; is_marked[me] = false }
  od
}

#ifdef NONUMBER
#define IS_KNOWN(i) known[i] > 0
#else
#define IS_KNOWN(i) known[i] == end_number[i]
#endif
#ifdef CLEARALL
#define CLEAR d_step { is_marked[0] = false; is_marked[1] = false; is_marked[2] = false }
#else
#define CLEAR_ONE(i) if :: known[i] > 0 && IS_KNOWN(i) -> is_marked[i] = false :: else fi
#define CLEAR d_step { CLEAR_ONE(0); CLEAR_ONE(1); CLEAR_ONE(2) }
#endif
#define HEAR_ONE(i) if :: is_marked[i] -> known[i] = end_number[i] :: else -> known[i] = 0 fi

active [2] proctype Reporter() {
  byte known[SUBTASKS];
  byte read, count;
again:
  skip;
  atomic { known[0] = 0; known[1] = 0; known[2] = 0; read = 0; count = 0 };
  d_step { MARKED -> HEAR_ONE(0); HEAR_ONE(1); HEAR_ONE(2) };
#ifdef CLEARFIRST
  CLEAR;
  if :: atomic { CRASH; goto again } :: skip fi;
#endif
count_again:
  skip;
  atomic { if :: waiting -> read = serial :: else -> goto clear fi };
  count = FINALS;
  if :: atomic { CRASH; goto again } :: skip fi;
  atomic {
    if
#ifdef NOGUARD
    :: serial == read ->
#else
#ifdef NOSERIAL
    :: waiting ->
#else
    :: waiting && serial == read ->
#endif
#endif
       if :: serial != read -> was_overwritten = true :: else fi;
       serial = (serial + 1) % 16;
       if :: count == SUBTASKS -> waiting = false; ends++ :: else fi
    :: else -> if :: waiting -> count = 0; goto count_again :: else fi
    fi
  };
  if :: atomic { CRASH; goto again } :: skip fi;
clear:
  skip;
#ifndef CLEARFIRST
  CLEAR;
#endif
  goto again
}

active proctype Canceller() { if :: atomic { waiting -> waiting = false; ends++ } :: skip fi }

active proctype Monitor() {
  do
  :: atomic { ends > 1 -> assert(false) }
  :: atomic { was_overwritten -> assert(false) }
  od
}

/* The parent ends; and no end stays unreported. */
ltl ended { <> !waiting }
ltl reported { [] <> !MARKED }
