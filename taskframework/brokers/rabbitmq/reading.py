"""Reading: what is for our consumers and publishers is taken out of what the broker sends, before the driver sees it.

The driver makes three objects, three awaits and a task of each delivery, decodes every field of it, and walks through
everything unconfirmed for a confirm. Here each is a few slices of what came from the socket; see
docs/decisions/0011-reading-deliveries.md. All else goes on to the driver, byte for byte and in its order.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

#: Told of a delivery, while the bytes are read: its tag, the payload of its content header, and its body.
Take = Callable[[int, bytes, bytes], None]
#: Told of a confirm: its number, whether all before it are meant as well, and whether the broker took the message.
Confirmed = Callable[[int, bool, bool], None]
#: Told of a message that came back: the payload of its content header. Raises ValueError if that cannot be read.
Returned = Callable[[bytes], None]

_METHOD, _HEADER, _BODY, _HEARTBEAT = _KINDS = (1, 2, 3, 8)
_END = 0xCE
#: A frame is kind, channel and size, then so many bytes, then the end mark.
_frame = struct.Struct(">BHI").unpack_from
_BEFORE, _AROUND = 7, 8
_long = struct.Struct(">Q").unpack_from
#: Class and method as they begin a method frame's payload.
_DELIVER, _RETURN, _ACK, _NACK = (struct.pack(">HH", 60, method) for method in (60, 50, 80, 120))
#: Channel.OpenOk, Channel.Close and Channel.CloseOk: from here on the number stands for another channel or for none.
_ANOTHER_CHANNEL = frozenset(struct.pack(">HH", 20, method) for method in (11, 40, 41))
#: The number under which the connection itself is spoken of, and what the broker says there of an alarm.
_CONNECTION = 0
_BLOCKED, _UNBLOCKED = (struct.pack(">HH", 10, method) for method in (60, 61))
#: A heartbeat, and the time in seconds after which the driver is given one in place of what was taken out.
_LIFE = struct.pack(">BHIB", _HEARTBEAT, 0, 0, _END)
_LIFE_SECONDS = 1.0
#: The fewest bytes of a frame with a confirm or with a content header, and of Basic.Deliver from its tag on. In fewer
#: the end mark would be read as a part of a number.
_CONFIRM_BYTES, _HEADER_BYTES, _FROM_TAG_BYTES = 21, 20, 12


class IncomingFrames:
    """Splits what the broker sends on one connection into what registered channels take and the rest."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._alarm = _Alarm()
        self._channels: dict[int, _Channel] = {_CONNECTION: self._alarm}
        #: The beginning of a frame, and the size at which it is worth another look.
        self._rest = bytearray()
        self._wanted = 0
        #: What came is not AMQP. The driver says so in its own words, and nothing after it means what it seems to.
        self._is_broken = False
        self._showed_life = clock()

    @property
    def is_blocked(self) -> bool:
        """Whether the broker takes no messages on this connection, because of a memory or disk alarm."""
        return self._alarm.is_ringing

    def register(self, channel: int, take: Take) -> None:
        """From now on, hand over what is delivered on an open channel; until the channel is closed.

        Call it before the consumer is requested: deliveries may come before the answer to that.
        """
        self._channels[channel] = _Deliveries(take)

    def register_confirms(self, channel: int, confirmed: Confirmed, returned: Returned) -> None:
        """The same for what the broker answers to publications."""
        self._channels[channel] = _Confirms(confirmed, returned)

    def split(self, data: bytes) -> bytes:
        """Hand over the deliveries that are complete.

        Returns:
            What is for the driver: whole frames, unless something is wrong with them.
        """
        if self._is_broken:
            return data
        if self._rest:
            self._rest += data
            if len(self._rest) < self._wanted:
                return b""
            data = bytes(self._rest)
            self._rest.clear()
        others, were_taken = self._read(data)
        if were_taken and not others and self._clock() - self._showed_life >= _LIFE_SECONDS:
            # The driver gives up a connection without frames, and the broker sends no heartbeats between deliveries.
            others.append(_LIFE)
        if others:
            self._showed_life = self._clock()
        return b"".join(others)

    def incomplete(self) -> bytes:
        """The beginning of a frame whose end will not come."""
        return bytes(self._rest)

    def _read(self, data: bytes) -> tuple[list[bytes], bool]:
        """What is for the driver, and whether anything was taken out."""
        others: list[bytes] = []
        at = begin = 0  # `begin`: of the frames for the driver that are not yet in `others`
        were_taken = False
        while (found := self._frame_at(data, at)) is not None:
            kind, number, after = found
            if (channel := self._channels.get(number)) is not None:
                if channel.takes(kind, data[at:after]):
                    others.append(data[begin:at])
                    begin, were_taken = after, True
                elif channel.is_over:
                    others += (data[begin:at], *channel.frames)
                    begin = at
                    del self._channels[number]
            at = after
        if self._is_broken:
            at = len(data)
        others.append(data[begin:at])
        self._rest += data[at:]
        return [part for part in others if part], were_taken

    def _frame_at(self, data: bytes, at: int) -> tuple[int, int, int] | None:
        """Kind, channel and end of a frame; None if it is not all there, or is none."""
        if at == len(data):
            return None
        if data[at] not in _KINDS:
            self._is_broken = True
            return None
        if len(data) - at < _AROUND:
            self._wanted = _AROUND
            return None
        kind, number, size = _frame(data, at)
        after = at + _AROUND + size
        if after > len(data):
            self._wanted = after - at
            return None
        if data[after - 1] != _END or (not size) != (kind == _HEARTBEAT):
            self._is_broken = True
            return None
        return kind, number, after


class _Channel:
    """A channel of ours, and the message that is just coming in on it."""

    __slots__ = ("_missing", "frames", "is_over")

    #: The method that begins a message.
    begins: bytes

    def __init__(self) -> None:
        #: What came of the message, whole frames.
        self.frames: list[bytes] = []
        #: Bytes of the body that are still to come.
        self._missing = 0
        #: It is closed, or sends what cannot be: its frames are the driver's business now.
        self.is_over = False

    def takes(self, kind: int, frame: bytes) -> bool:
        """Whether a frame is for us; the last one of a message hands it over."""
        try:
            return self._takes_first(kind, frame) if not self.frames else self._takes_next(kind, frame)
        except (struct.error, IndexError, ValueError):
            # The driver gets the frames of the message from the first one on, and fails as it always does.
            self.is_over = True
            return False

    def _takes_first(self, kind: int, frame: bytes) -> bool:
        if kind != _METHOD:
            return False  # of a message that was asked for
        method = frame[_BEFORE : _BEFORE + 4]
        if method == self.begins:
            self.frames.append(frame)
            return True
        self.is_over = method in _ANOTHER_CHANNEL
        return self._takes_method(method, frame)

    def _takes_next(self, kind: int, frame: bytes) -> bool:
        if kind != (_HEADER if len(self.frames) == 1 else _BODY):
            self.is_over = True
            return False
        if kind == _HEADER:
            if len(frame) < _HEADER_BYTES:
                raise ValueError("a content header that is too short")
            (self._missing,) = _long(frame, _BEFORE + 4)
        else:
            self._missing -= len(frame) - _AROUND
        if self._missing > 0:
            self.frames.append(frame)
            return True
        method, header, *bodies = *self.frames, frame
        self._hand_over(method, header[_BEFORE:-1], b"".join([body[_BEFORE:-1] for body in bodies]))
        self.frames = []
        return True

    def _takes_method(self, method: bytes, frame: bytes) -> bool:
        return False

    def _hand_over(self, method: bytes, header: bytes, body: bytes) -> None:
        """Take a message.

        Raises:
            struct.error, IndexError, ValueError: if it is malformed.
        """
        raise NotImplementedError


class _Deliveries(_Channel):
    """A channel with a consumer."""

    __slots__ = ("_take",)

    begins = _DELIVER

    def __init__(self, take: Take) -> None:
        super().__init__()
        self._take = take

    def _hand_over(self, method: bytes, header: bytes, body: bytes) -> None:
        at = _BEFORE + 5 + method[_BEFORE + 4]  # behind the consumer's tag
        if len(method) < at + _FROM_TAG_BYTES:
            raise ValueError("a delivery that is too short")
        (tag,) = _long(method, at)
        try:
            self._take(tag, header, body)
        except Exception:
            logger.exception("a delivery could not be taken")


class _Confirms(_Channel):
    """A channel that publishes."""

    __slots__ = ("_confirmed", "_returned")

    begins = _RETURN

    def __init__(self, confirmed: Confirmed, returned: Returned) -> None:
        super().__init__()
        self._confirmed = confirmed
        self._returned = returned

    def _takes_method(self, method: bytes, frame: bytes) -> bool:
        if method not in (_ACK, _NACK) or len(frame) < _CONFIRM_BYTES:
            return False
        (tag,) = _long(frame, _BEFORE + 4)
        self._confirmed(tag, bool(frame[_BEFORE + 12] & 1), method == _ACK)
        return True

    def _hand_over(self, method: bytes, header: bytes, body: bytes) -> None:
        self._returned(header)


class _Alarm(_Channel):
    """The connection itself: what is said there is listened to, and for the driver all the same."""

    __slots__ = ("is_ringing",)

    def __init__(self) -> None:
        super().__init__()
        self.is_ringing = False

    def takes(self, kind: int, frame: bytes) -> bool:
        if kind == _METHOD and (method := frame[_BEFORE : _BEFORE + 4]) in (_BLOCKED, _UNBLOCKED):
            self.is_ringing = method == _BLOCKED
        return False
