/* A parent that waits for its three sub-tasks: each sub-task's final write marks it to be reported; whoever reports
 * counts the final sub-tasks, writes the count into the parent, and then takes the mark away. Two reporters that die in between.
 *
 * Mutants: -DINCREMENT (one more, instead of counting) -DEVENTONLY (no mark: an event in the process, which can be lost)
 * -DCLEARFIRST (the mark goes before the parent is written) -DUNGUARDED (the finishing write does not look at the status)
 * -DCOUNTSPLANNED (ends when all that are spawned, not all that are planned, are final).
 */
#define PLANNED 3
#define REPORTERS 2
#define CRASHES 2

/* The documents. Every access below is one guarded write, or one read. */
bool waiting = false;
byte done = 0;
bool is_final[PLANNED], report_to_parent[PLANNED];

byte spawned = 0, finishes = 0, crashes = 0;

#define CRASH crashes < CRASHES -> crashes++
#define FINALS (is_final[0] + is_final[1] + is_final[2])
#ifdef COUNTSPLANNED
#define ALL spawned
#else
#define ALL PLANNED
#endif

/* The plan, which names the sub-tasks, is in the write that makes the parent wait. */
active proctype Parent() { waiting = true }

/* Inserts under fixed ids: doing it again after a crash changes nothing. */
active proctype Spawner() {
  do
  :: atomic { waiting && spawned < PLANNED -> spawned++ }
  :: atomic { CRASH }
  :: spawned == PLANNED -> break
  od
}

active [PLANNED] proctype Subtask() {
  byte me;
  me = _pid - 2; /* after Parent and Spawner */
  spawned > me;
#ifndef EVENTONLY
  atomic { is_final[me] = true; report_to_parent[me] = true }
#else
  is_final[me] = true;
  if :: report_to_parent[me] = true :: atomic { CRASH } fi
#endif
}

active [REPORTERS] proctype Reporter() {
  byte subtask, count;
  do
  :: atomic {
       if
       :: report_to_parent[0] -> subtask = 0
       :: report_to_parent[1] -> subtask = 1
       :: report_to_parent[2] -> subtask = 2
       fi };
#ifdef CLEARFIRST
     report_to_parent[subtask] = false;
     if :: skip :: atomic { CRASH; subtask = 0 }; goto again fi;
#endif
     count = FINALS;
     atomic {
       if
#ifdef INCREMENT
       :: waiting -> done++
#else
       :: waiting && count > done -> done = count
#endif
       :: else -> skip
       fi };
     count = 0;
     atomic {
       if
#ifdef UNGUARDED
       :: done == ALL -> waiting = false; finishes++
#else
       :: waiting && done == ALL -> waiting = false; finishes++
#endif
       :: else -> skip
       fi };
#ifndef CLEARFIRST
     if :: report_to_parent[subtask] = false :: atomic { CRASH } fi;
#endif
again:
     subtask = 0
  od
}

active proctype Monitor() {
  do
  :: atomic { finishes > 1 -> assert(false) }
  :: atomic { done > PLANNED -> assert(false) }
  :: atomic { finishes == 1 && FINALS < PLANNED -> assert(false) }
  od
}

ltl finished { <> (finishes == 1) }
