package domain

import "strconv"

// Network is what a connection goes by.
type Network string

// The networks.
const (
	NetworkTCP  Network = "tcp"
	NetworkUDP  Network = "udp"
	NetworkUnix Network = "unix"
)

// Refusal says how often the sandbox has refused to let a program reach something.
// It is a fact about calls that were made; the address is what the program had
// written there, which another of its threads may change at any time. The zero value
// is none.
type Refusal struct {
	Network Network // "" if these are several destinations, which are only counted
	// Address is ADDRESS:PORT, or the path of a unix socket, or "@" and its abstract
	// name. It is empty where a program did not even get a socket.
	Address string
	Count   uint64
}

// Destination is network and address as one word: "tcp:192.0.2.1:443",
// "unix:/run/docker.sock", "udp", and "" for several destinations.
func (r Refusal) Destination() string {
	if r.Address == "" {
		return string(r.Network)
	}
	return string(r.Network) + ":" + r.Address
}

// String says what was refused, in a sentence.
func (r Refusal) String() string {
	switch {
	case r == Refusal{}:
		return "nothing was refused"
	case r.Network == "":
		return "the sandbox refused connections to other destinations" + times(r.Count)
	case r.Address == "":
		return "the sandbox refused a socket for " + string(r.Network) + times(r.Count)
	}
	return "the sandbox refused a connection to " + printable(r.Destination()) + times(r.Count)
}

func times(n uint64) string {
	if n < 2 {
		return ""
	}
	return " (" + strconv.FormatUint(n, 10) + " times)"
}
