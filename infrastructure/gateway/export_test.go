package gateway

import "time"

// Impatient returns the implementation with shorter waits for the head and the
// body of a request.
func Impatient(head, body time.Duration) *Gateways { return &Gateways{head: head, body: body} }
