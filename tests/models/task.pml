/* One task: two workers that crash, pause and stop, and a broker that loses, doubles and reorders messages.
 *
 * The protocol as taskframework/model has it. Options: -DCANCEL -DREPLAY -DRELEASE (a worker stops and hands back).
 * Mutants, each without one rule: -DNOFENCE -DNOEPOCH -DNODUE -DNOSWEEP -DNOREAP -DRESETTOKEN (with -DREPLAY)
 * -DREAPERFORGETS (its write does not look again) -DRELEASEFORGETS (a pending cancel; with -DCANCEL -DRELEASE)
 * -DBYREDELIVERY (no lease counts, only the message; an early ack takes it away) -DNAIVE (none of the repairs).
 */
#ifndef MAX_ATTEMPTS
#define MAX_ATTEMPTS 2
#endif
#ifndef FAULTS
#define FAULTS 1 /* crashes, stops and hand-overs, all together */
#endif
#ifndef LOSSES
#define LOSSES 1 /* messages the broker may lose */
#endif
#define WORKERS 2
#define QUEUE 3
mtype = { ABSENT, QUEUED, RUNNING, RETRYING, COMPLETED, DEAD_LETTER, CANCELLED };

/* The document. Every access below is one guarded write. The fence of a claim is its token alone: the claim id, which
 * the code compares too, never repeats and would hide what the token is for. */
mtype status = ABSENT;
byte fencing_token = 0;
byte attempts = 0;
byte dispatch_epoch = 1;
bool leased = false;       /* lease.expires_at is ahead */
bool due = true;           /* not_before has passed */
bool dispatchable = false; /* next_dispatch_at is set: the sweeper drives it */
bool cancel = false;

/* What the properties speak of, and no rule reads. */
bool accepted = false;
byte claims = 0, completions = 0, faults = 0, losses = 0;
bool started_early = false, started_by_old_message = false;

chan queue = [QUEUE] of { byte }; /* a message carries the dispatch epoch */

#define FINAL (status == COMPLETED || status == DEAD_LETTER || status == CANCELLED)
#define CLAIMABLE (status == QUEUED || status == RETRYING)
#define FAULT faults < FAULTS -> faults++

inline publish(epoch) { if :: nfull(queue) -> queue!epoch :: full(queue) -> skip fi }

/* The producer hears of it and publishes at once, a delay being the broker's: it may deliver early. Or nobody hears. */
inline ring() { if :: publish(dispatch_epoch) :: skip fi }

/* Killed or cut off: delivered again, unless it was acked early. */
inline redeliver(epoch) { if :: publish(epoch) :: skip fi }

inline claimable_again(next_status, is_due) {
  status = next_status; dispatch_epoch++; leased = false; due = is_due; dispatchable = true; ring()
}

inline claim_it() {
  status = RUNNING; fencing_token++; attempts++; leased = true; dispatchable = false;
  claims++; token = fencing_token; claim = claims; renewed = false
}

proctype Submitter() {
  atomic { status = QUEUED; dispatchable = true; accepted = true };
  if
  :: publish(1)
  :: atomic { FAULT }
  fi
}

#ifdef NOEPOCH
#define RINGS_FOR(epoch) true
#else
#define RINGS_FOR(epoch) (dispatch_epoch == epoch)
#endif
#ifdef NODUE
#define DUE true
#else
#define DUE due
#endif
#define WANTED(epoch) (CLAIMABLE && RINGS_FOR(epoch) && DUE && !cancel)
#ifdef BYREDELIVERY
#define TAKEN_OVER (status == RUNNING)
#else
#define TAKEN_OVER false
#endif
#ifdef NOFENCE
#define HELD(token) (status == RUNNING)
#else
#define HELD(token) (status == RUNNING && fencing_token == token)
#endif

active [WORKERS] proctype Worker() {
  byte epoch, token, claim;
  bool renewed;
idle:
  queue?epoch; /* delivered, not acked */
  if
  :: atomic { WANTED(epoch) ->
       if :: !due -> started_early = true :: else -> skip fi;
       if :: dispatch_epoch != epoch -> started_by_old_message = true :: else -> skip fi;
       claim_it() }
  :: atomic { !WANTED(epoch) && !TAKEN_OVER -> skip }; goto idle /* ack: not needed */
#ifdef BYREDELIVERY
  :: atomic { TAKEN_OVER && leased -> publish(epoch) }; goto idle
  :: atomic { TAKEN_OVER && !leased && attempts < MAX_ATTEMPTS -> claim_it() }
  :: atomic { TAKEN_OVER && !leased && attempts >= MAX_ATTEMPTS -> status = DEAD_LETTER }; goto idle
#endif
  :: atomic { FAULT -> redeliver(epoch) }; goto idle /* killed, or no slot in time: acked, the sweeper has it */
  fi;
execute:
  if
  :: atomic { !renewed && HELD(token) && !leased -> renewed = true; leased = true }; goto execute /* late, yet not reaped */
  :: atomic { true ->
       if
       :: HELD(token) -> status = COMPLETED; leased = false; completions++;
          assert(claim == claims) /* no zombie completes */
       :: else -> skip /* stale */
       fi }
  :: atomic { true ->
       if
       :: HELD(token) && cancel -> status = CANCELLED; leased = false
       :: HELD(token) && !cancel && attempts < MAX_ATTEMPTS -> claimable_again(RETRYING, false);
       :: HELD(token) && !cancel && attempts >= MAX_ATTEMPTS -> status = DEAD_LETTER; leased = false
       :: else -> skip
       fi }
#ifdef RELEASE
  :: atomic { FAULT ->
       if
#ifndef RELEASEFORGETS
       :: HELD(token) && cancel -> status = CANCELLED; leased = false
       :: HELD(token) && !cancel -> attempts--; claimable_again(QUEUED, true);
#else
       :: HELD(token) -> attempts--; claimable_again(QUEUED, true);
#endif
       :: else -> skip
       fi }
#endif
  :: atomic { FAULT -> token = 0; claim = 0; redeliver(epoch) }; goto idle /* killed */
  fi;
  if
  :: goto idle /* ack */
  :: atomic { FAULT -> token = 0; claim = 0; redeliver(epoch) }; goto idle /* killed before it, or it is lost */
  fi
}

/* Time: a lease ends, a delay is over, whenever it likes. */
active proctype Lease() { do :: atomic { leased && status == RUNNING -> leased = false } od }
active proctype Delay() { do :: atomic { !due -> due = true } od }

active proctype Broker() {
  byte epoch;
  do :: atomic { losses < LOSSES && nempty(queue) -> queue?epoch; losses++; epoch = 0 } od
}

#ifndef NAIVE
#ifndef NOSWEEP
active proctype Sweeper() { do :: atomic { CLAIMABLE && dispatchable && due && len(queue) == 0 -> queue!dispatch_epoch } od }
#endif
#ifndef NOREAP
#ifndef BYREDELIVERY
active proctype Reaper() {
  byte token;
  do
  :: atomic { status == RUNNING && !leased -> token = fencing_token };
     atomic {
       if
#ifdef REAPERFORGETS
       :: true ->
#else
       :: status == RUNNING && !leased && fencing_token == token ->
#endif
          if
          :: cancel -> status = CANCELLED
          :: !cancel && attempts < MAX_ATTEMPTS -> claimable_again(RETRYING, false);
          :: !cancel && attempts >= MAX_ATTEMPTS -> status = DEAD_LETTER
          fi
#ifndef REAPERFORGETS
       :: else -> skip
#endif
       fi; token = 0 }
  od
}
#endif
#endif
#endif

#ifdef CANCEL
active proctype Canceller() {
  atomic {
    if
    :: CLAIMABLE -> status = CANCELLED
    :: status == RUNNING -> cancel = true
    :: FINAL -> skip
    fi
  }
}
#endif

#ifdef REPLAY
active proctype Operator() {
  atomic { status == DEAD_LETTER -> attempts = 0; claimable_again(QUEUED, true);
#ifdef RESETTOKEN
    fencing_token = 0
#endif
  }
}
#endif

init { run Submitter() }

/* Each live status has a driver, and no claimable task a cancel that no claim would accept. */
#define DRIVEN (!CLAIMABLE || (dispatchable && !cancel))

active proctype Monitor() {
  do
  :: atomic { completions > 1 -> assert(false) }
  :: atomic { attempts > MAX_ATTEMPTS -> assert(false) }
  :: atomic { started_early || started_by_old_message -> assert(false) }
  :: atomic { status == CANCELLED && completions > 0 -> assert(false) }
#ifndef NAIVE
  :: atomic { !DRIVEN -> assert(false) }
#endif
  od
}

ltl live { [] (accepted -> <> FINAL) }
ltl stable {
  [] ((status == COMPLETED -> [] (status == COMPLETED)) && (status == DEAD_LETTER -> [] (status == DEAD_LETTER))
      && (status == CANCELLED -> [] (status == CANCELLED)))
}
