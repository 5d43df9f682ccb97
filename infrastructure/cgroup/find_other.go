//go:build !linux

package cgroup

import "errors"

// Find returns an error: control groups are Linux's.
func Find() (*Hierarchy, error) { return nil, errors.ErrUnsupported }
