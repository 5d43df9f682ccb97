package portstest

import (
	"context"
	"slices"
	"sync"
)

// opener remembers what a fake has opened. The zero value works.
type opener[T any] struct {
	mu     sync.Mutex
	opened []*T
}

// open adds what is made by its number, from 1 on, unless ctx has ended or the fake is
// to fail.
func (o *opener[T]) open(ctx context.Context, fail error, open func(number int) *T) (*T, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if fail != nil {
		return nil, fail
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	t := open(len(o.opened) + 1)
	o.opened = append(o.opened, t)
	return t, nil
}

func (o *opener[T]) all() []*T {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.opened)
}
