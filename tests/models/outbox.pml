/* The events of one task: its history is the outbox. Two relays that die before and after the confirm, a broker that
 * may refuse a message, and a subscriber that applies what is newer than the last it applied.
 *
 * Mutants: -DNEWESTONLY (publishes the event it heard, not all above the mark) -DPIPELINE (a message for each event,
 * going on after a refusal) -DMARKFIRST (the mark before the confirm) -DMARKBACK (a mark that may go back)
 * -DMARKDONE (the mark ends the relay's duty even if there is news) -DEVENTAFTER (event and transition in two writes).
 */
#define LAST 3 /* transitions of the task */
#define RELAYS 2
#define CRASHES 2
#define REFUSALS 1

/* The document. Every access below is one guarded write. */
byte sequence = 0;           /* events in the history */
byte published_sequence = 0;
bool relay_due = false;      /* publish_at is set */

byte transitions = 0, crashes = 0, refusals = 0;
byte last = 0;                              /* what the subscriber applied */
chan events = [4] of { byte, byte };        /* a message holds the events above the first number up to the second */

#define CRASH crashes < CRASHES -> crashes++
#define REFUSAL refusals < REFUSALS -> refusals++

inline record() { sequence++; relay_due = true }

inline mark(up_to) {
  if
#ifdef MARKBACK
  :: true -> published_sequence = up_to
#else
  :: published_sequence < up_to -> published_sequence = up_to
  :: else -> skip
#endif
  fi;
  if
#ifdef MARKDONE
  :: true -> relay_due = false
#else
  :: up_to >= sequence -> relay_due = false
  :: else -> skip
#endif
  fi
}

active proctype Task() {
  do
#ifndef EVENTAFTER
  :: atomic { transitions < LAST -> transitions++; record() }
#else
  :: atomic { transitions < LAST -> transitions++ };
     if
     :: atomic { record() }
     :: atomic { CRASH }
     fi
#endif
  :: transitions == LAST -> break
  od
}

active [RELAYS] proctype Relay() {
  byte above, up_to;
  do
  :: atomic { relay_due && published_sequence < sequence -> above = published_sequence; up_to = sequence };
#ifdef NEWESTONLY
     above = up_to - 1;
#endif
#ifdef MARKFIRST
     atomic { mark(up_to) };
#endif
#ifndef PIPELINE
     if
     :: events!above, up_to;
        if
        :: atomic { mark(up_to) }
        :: atomic { CRASH }
        fi
     :: atomic { REFUSAL }
     :: atomic { CRASH }
     fi;
#else
     do
     :: above < up_to && nfull(events) -> events!above, above + 1; above++
     :: atomic { above < up_to && REFUSAL; above++ }
     :: above == up_to -> break
     od;
     atomic { mark(up_to) };
#endif
     above = 0; up_to = 0
  od
}

active proctype Subscriber() {
  byte above, up_to;
  do
  :: atomic { events?above, up_to ->
       assert(above <= last); /* no gap */
       if :: up_to > last -> last = up_to :: else -> skip fi;
       above = 0; up_to = 0 }
  od
}

/* What is not surely published has a relay time. */
active proctype Monitor() { atomic { published_sequence < sequence && !relay_due -> assert(false) } }

ltl delivered { [] (transitions == LAST -> <> (last == LAST)) }
