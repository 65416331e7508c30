/* Serial streams: one key with three tasks. A0 and A1 are submitted one after the other, B beside them. The record of the
 * key holds the next position and the turn: a task and its generation. A submission takes a position, and then stores its
 * task BLOCKED. Whoever advances the stream
 *   reads the record, and the task that has the turn: if it is live there is nothing to do, and if it waits BLOCKED under
 *   this turn it is let go, where it is still BLOCKED in this generation;
 *   otherwise chooses the lowest BLOCKED position, gives it the turn where the turn is still the one that was read, and
 *   lets it go in the same way.
 * A task that ended with -DHALTS stops its stream: the record says so where the turn is still that task's, and the stream
 * goes on once that task is replayed. Any process may die between two steps; what it left is found again, since a stream
 * with a BLOCKED task is looked at for ever.
 *
 * Mutants: -DBLIND (gives the turn without comparing) -DANYGENERATION (compares the task that has the turn, and not its
 * generation) -DLETANYGO (lets a task go without comparing its generation) -DNOSWEEP (looks only when a task has ended)
 * -DDIRECT (a new task goes at once when nobody has the turn) -DHALTANY (halts without comparing).
 */
#define N 3
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef REPLAYS
#define REPLAYS 1
#endif
#define NONE 9
mtype = { ABSENT, BLOCKED, QUEUED, RUNNING, FINAL };

/* The tasks. */
mtype task[N] = ABSENT;
byte generation[N], position[N];
/* The record. */
byte next_position = 0, turn = NONE, turn_generation = 0;
bool is_halted = false;

/* What only the checks know. */
byte crashes = 0, replays = 0, cancels = 0;
bool began[N], is_accepted[N];
bool is_out_of_order = false;

#define IS_LIVE(t) (task[t] == QUEUED || task[t] == RUNNING)
#ifdef HALTS
#define IS_FAILURE(t, g) (t == 0 && g == 0) /* A0 fails the first time */
#else
#define IS_FAILURE(t, g) false
#endif
#ifdef ANYGENERATION
#define HAS_TURN(t, g) (turn == t)
#else
#define HAS_TURN(t, g) (turn == t && turn_generation == g)
#endif

inline let_go(t, g) {
  atomic {
    if
#ifdef LETANYGO
    :: task[t] == BLOCKED -> task[t] = QUEUED
#else
    :: task[t] == BLOCKED && generation[t] == g -> task[t] = QUEUED
#endif
    :: else
    fi
  }
}

inline choose_lowest() {
  d_step {
    chosen = NONE; k = 0;
    do
    :: k < N ->
       if
       :: task[k] == BLOCKED && (chosen == NONE || position[k] < position[chosen]) -> chosen = k
       :: else
       fi;
       k++
    :: else -> break
    od;
    k = 0;
    if
    :: chosen != NONE -> chosen_generation = generation[chosen]
    :: else
    fi
  }
}

proctype Submission(byte first; byte last) {
  byte mine = first;
  do
  :: mine <= last ->
     atomic { position[mine] = next_position; next_position++ };
     atomic { if :: crashes < CRASHES -> crashes++; goto over :: true fi }; /* a position that nobody is at */
#ifdef DIRECT
     atomic {
       if
       :: turn == NONE || task[turn] == FINAL -> turn = mine; turn_generation = 0; task[mine] = QUEUED
       :: else -> task[mine] = BLOCKED
       fi
     };
#else
     task[mine] = BLOCKED;
#endif
     is_accepted[mine] = true;
     mine++
  :: else -> break
  od;
over:
  skip
}

proctype Advance() {
  byte holder, holder_generation, seen_generation, chosen, chosen_generation, k = 0;
  mtype seen;
  bool was_halted;
again:
  skip;
  d_step { holder = 0; holder_generation = 0; seen_generation = 0; seen = 0; chosen = 0; chosen_generation = 0; was_halted = false };
#ifdef NOSWEEP
  (turn != NONE && task[turn] == FINAL);
#else
  (task[0] == BLOCKED || task[1] == BLOCKED || task[2] == BLOCKED);
#endif
  d_step { holder = turn; holder_generation = turn_generation; was_halted = is_halted };
  if
  :: holder != NONE ->
     d_step { seen = task[holder]; seen_generation = generation[holder] };
     if
     :: seen_generation == holder_generation && (seen == QUEUED || seen == RUNNING) -> goto again
     :: seen_generation == holder_generation && seen == BLOCKED -> let_go(holder, holder_generation); goto again
     :: seen_generation == holder_generation && seen == FINAL && IS_FAILURE(holder, holder_generation) ->
#ifdef HALTANY
        is_halted = true;
#else
        atomic { if :: !was_halted && HAS_TURN(holder, holder_generation) -> is_halted = true :: else fi };
#endif
        goto again
     :: else
     fi
  :: else
  fi;
  choose_lowest();
  if :: chosen == NONE -> goto again :: else fi;
#ifdef BLIND
  atomic { turn = chosen; turn_generation = chosen_generation; is_halted = false };
#else
  atomic {
    if
    :: HAS_TURN(holder, holder_generation) -> turn = chosen; turn_generation = chosen_generation; is_halted = false
    :: else -> goto again
    fi
  };
#endif
  if
  :: atomic { crashes < CRASHES -> crashes++; goto again } /* the turn is given, nobody was let go */
  :: true
  fi;
  let_go(chosen, chosen_generation);
  goto again
}

inline run_task(t) {
  atomic {
    if
    :: task[t] == QUEUED ->
       task[t] = RUNNING; began[t] = true;
       if
       :: t == 1 && generation[0] == 0 && !began[0] && task[0] == BLOCKED && is_accepted[0] -> is_out_of_order = true
       :: else
       fi
    :: else
    fi
  };
  task[t] = FINAL
}

/* Claims what is queued; that a task is retried under its turn changes nothing. */
active proctype Worker() {
  do
  :: IS_LIVE(0) -> run_task(0)
  :: IS_LIVE(1) -> run_task(1)
  :: IS_LIVE(2) -> run_task(2)
  od
}

/* Cancels one that waits, replays one that is over. */
active proctype Operator() {
  do
  :: atomic { cancels < 1 && task[0] == BLOCKED -> cancels++; task[0] = FINAL }
  :: atomic { cancels < 1 && task[2] == BLOCKED -> cancels++; task[2] = FINAL }
  :: atomic { replays < REPLAYS && task[0] == FINAL -> replays++; generation[0]++; task[0] = BLOCKED }
  :: atomic { replays < REPLAYS && task[2] == FINAL -> replays++; generation[2]++; task[2] = BLOCKED }
  od
}

init { atomic { run Submission(0, 1); run Submission(2, 2); run Advance(); run Advance() } }

#ifdef LIVENESS
ltl ended { [] (task[1] == BLOCKED -> <> (task[1] == FINAL)) }
#else
#define ARE_TWO ((IS_LIVE(0) && IS_LIVE(1)) || (IS_LIVE(0) && IS_LIVE(2)) || (IS_LIVE(1) && IS_LIVE(2)))
/* Only the task that has the turn halts its stream. */
#define IS_HALTED_BY_ANOTHER (is_halted && !(turn == 0 && turn_generation == 0))
active proctype Monitor() {
  do
  :: atomic { ARE_TWO -> assert(false) }
  :: atomic { is_out_of_order -> assert(false) }
  :: atomic { IS_HALTED_BY_ANOTHER -> assert(false) }
  od
}
#endif
