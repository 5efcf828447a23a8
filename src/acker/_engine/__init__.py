"""The acker itself and what it is made of: private, `acker` exports what users need."""
