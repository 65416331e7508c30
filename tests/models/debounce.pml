/* Debounce: submissions of one key, each with parameters of its own, two workers, and what else happens to tasks.
 * A submission
 *   reads the record of the key; replaces the parameters of the task that it names, by one guarded write; if that is not
 *   there yet, stores a task under its id, and if somebody else was faster, replaces; if the task has begun or is over,
 *   writes the record with the id of its own task, where nobody has written it since it was read, and stores that;
 *   whoever loses begins again.
 * A worker claims in one guarded write, and runs with what it has read by that. Submitters may die between any two steps, and a
 * task may be cancelled, replayed, or deleted: that comes so late that nobody has yet to store under its id.
 *
 * Mutants: -DBLIND (replaces whatever the task is doing) -DBLINDRECORD (writes the record without comparing) -DOVERWRITE
 * (stores over the task that is there) -DREUSE (takes a task that was deleted for one that has yet to come) -DGIVEUP (says
 * that it is accepted after a lost race) -DOPENANY (opens a window without looking whether the task of the last one waits).
 */
#define IDS 4                  /* 0 is none; each submitter has an id for the window that it may open */
#ifndef CRASHES
#define CRASHES 1
#endif
mtype = { NOT_THERE, WAITING, RUNNING, OVER, DELETED };

byte named = 0, revision = 0;  /* the record: which task, and how often it was written */
mtype task[IDS] = NOT_THERE;
byte parameters[IDS];
bool is_replayed[IDS];

/* What only the checks know. */
byte given[IDS];               /* the task that has got the parameters of this submission, or had */
byte lives[IDS];               /* how often a task was stored under this id */
byte crashes = 0, cancels = 0, deletions = 0, replays = 0;

#define CRASH crashes < CRASHES -> crashes++
#define IS_OPEN(id) (task[id] == WAITING && !is_replayed[id])

inline replaces(id, is_done) {
  atomic {
    if
#ifdef BLIND
    :: task[id] != NOT_THERE && task[id] != DELETED ->
#else
    :: IS_OPEN(id) ->
#endif
       assert(IS_OPEN(id)); /* it is going to be run with them */
       parameters[id] = mine; given[mine] = id; is_done = true
    :: else -> is_done = false
    fi
  }
}

inline stores(id, is_done) {
  atomic {
    if
#ifdef OVERWRITE
    :: true ->
#else
#ifdef REUSE
    :: task[id] == NOT_THERE || task[id] == DELETED ->
#else
    :: task[id] == NOT_THERE ->
#endif
#endif
       lives[id]++;
       assert(lives[id] == 1); /* no id is used twice */
       assert(!IS_OPEN(1) && !IS_OPEN(2) && !IS_OPEN(3)); /* who comes while one waits shares it */
       task[id] = WAITING; parameters[id] = mine; given[mine] = id; is_done = true
#ifndef OVERWRITE
    :: else -> is_done = false
#endif
    fi
  }
}

proctype Submission(byte mine) {
  byte id, read;
  bool is_done = false;
again:
  atomic { id = named; read = revision };
  if :: atomic { CRASH; goto over } :: skip fi;
#ifndef OPENANY
  if
  :: id != 0 ->
     replaces(id, is_done);
     if :: is_done -> goto is_accepted :: else fi;
     if :: atomic { CRASH; goto over } :: skip fi;
     stores(id, is_done);
     if :: is_done -> goto is_accepted :: else fi;
     replaces(id, is_done); /* it may have come just now */
     if :: is_done -> goto is_accepted :: else fi
  :: else
  fi;
#endif
  if :: id == mine -> goto over :: else fi; /* a new id for each window; there are no more in this world */
  atomic {
    if
#ifdef BLINDRECORD
    :: true -> named = mine; revision++
#else
    :: revision == read -> named = mine; revision++
#ifdef GIVEUP
    :: else -> goto is_accepted
#else
    :: else -> goto again
#endif
#endif
    fi
  };
  if :: atomic { CRASH; goto over } :: skip fi;
  stores(mine, is_done);
  if :: is_done -> goto is_accepted :: else fi;
  replaces(mine, is_done);
  if :: is_done -> goto is_accepted :: else -> goto again fi;
is_accepted:
  assert(given[mine] != 0);
over:
  skip
}

active [2] proctype Worker() {
  byte id, mine;
  do
  :: atomic {
       if
       :: task[1] == WAITING -> id = 1
       :: task[2] == WAITING -> id = 2
       :: task[3] == WAITING -> id = 3
       fi;
       task[id] = RUNNING; mine = parameters[id]
     };
     /* It ends with what it began with. */
     atomic { assert(parameters[id] == mine); if :: task[id] == RUNNING -> task[id] = OVER :: else fi; id = 0; mine = 0 }
  od
}

active proctype Others() {
  byte id;
  do
  :: atomic { cancels < 1; select(id: 1 .. 3); if :: task[id] == WAITING -> cancels++; task[id] = OVER :: else fi; id = 0 }
  :: atomic { deletions < 1; select(id: 1 .. 3); if :: task[id] == OVER -> deletions++; task[id] = DELETED :: else fi; id = 0 }
  :: atomic {
       replays < 1; select(id: 1 .. 3);
       if :: task[id] == OVER -> replays++; task[id] = WAITING; is_replayed[id] = true :: else fi; id = 0
     }
  od
}

init { atomic { run Submission(1); run Submission(2); run Submission(3) } }

/* Nothing that waits does so for ever. */
ltl begun { [] (task[1] == WAITING -> <> task[1] != WAITING) }
